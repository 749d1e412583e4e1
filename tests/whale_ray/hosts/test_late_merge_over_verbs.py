"""Late merge over hosts that queue pairs link: deltas cross, and the counts are numpy's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import whale_ray as whale
from tests.whale_ray.hosts.bids import KEYS, WINDOW_S, totals, write_bids
from tests.whale_ray.hosts.emulated import MARKS, PATIENCE_S
from tests.whale_ray.hosts.emulated import SETTINGS as EMULATED
from whale_ray.api.submission import submit

pytestmark = [pytest.mark.rdma, pytest.mark.long, *MARKS]

HOSTS = 2
ROWS = 100_000


@pytest.fixture(scope="module")
def bids(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file of bids."""
    return write_bids(tmp_path_factory.mktemp("bids") / "bids.arrow", ROWS)


def expected(bids: Path) -> list[tuple[int, int, int, int]]:
    """Return window, key, count and sum of prices, sorted."""
    with pa.memory_map(str(bids)) as file:
        table = pa.ipc.open_file(file).read_all()
    keys = table["key"].to_numpy()
    windows = np.arange(ROWS) // (1000 * WINDOW_S)
    groups = windows * KEYS + keys
    counts = np.bincount(groups)
    prices = np.bincount(groups, table["price"].to_numpy()).astype(np.int64)
    there = np.flatnonzero(counts)
    columns = (there // KEYS, there % KEYS, counts[there], prices[there])
    return list(zip(*(column.tolist() for column in columns), strict=True))


def bytes_between_hosts(bids: Path, verb: str) -> int:
    """Run the job; return the bytes that its links have carried, once its results are checked."""
    settings = {
        **EMULATED,
        "runtime.hosts": HOSTS,
        "transport.verbs_data": verb,
    }
    topology = totals(whale.sources.ipc(bids), "late_merge", HOSTS)
    job = submit(topology, on="processes", workers=HOSTS, settings=settings).wait(PATIENCE_S)
    found = [
        (row["window_start"].timestamp() // WINDOW_S, row["key"], row["bids"], row["total"])
        for row in job.results("out").to_arrow().to_pylist()
    ]
    assert sorted(found) == expected(bids)
    links = [link for relay in job.metrics().relays for link in relay.links]
    assert links
    for link in links:
        assert set(link.sent_by_carrier) | set(link.received_by_carrier) <= {"verbs"}, link
        assert link.way in {"", f"verbs {verb.upper()} on rxe0", f"verbs {verb.upper()} on rxe1"}
    return sum(link.bytes_sent for link in links)


@pytest.mark.parametrize("verb", ["read", "write"])
def test_deltas_cross_instead_of_rows(bids: Path, verb: str) -> None:
    rowwise = 8 * ROWS  # rows have 16 bytes each, and half of them would cross
    assert 0 < bytes_between_hosts(bids, verb) < rowwise / 2
