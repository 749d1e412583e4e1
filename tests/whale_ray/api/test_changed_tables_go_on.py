"""A table that changes, in jobs that fail and go on: the changes are in the checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import whale_ray as whale
from tests.whale_ray.applications.paced_table import PacedTable, PlannedFailureError
from whale_ray.errors import InputError
from whale_ray.testing import VirtualClock

BEGIN_NS = 1_760_000_000_000_000_000
HALF_A_PAUSE_NS = 5_000_000_000
KEYS, PARTS = 40, 5
PEOPLE = pa.table({"id": range(KEYS), "name": ["first"] * KEYS})
CHANGES = pa.table(
    {
        "id": [(part * 11 + row * 3) % (KEYS + 5) for part in range(PARTS) for row in range(10)],
        "name": [f"{part}-{row}" for part in range(PARTS) for row in range(10)],
        "gone": [row % 4 == 3 for _ in range(PARTS) for row in range(10)],
    }
)
ROWS = pa.table({"k": [row % (KEYS + 5) for row in range(PARTS * 50)], "n": range(PARTS * 50)})


def topology_of(
    parallelism: int, fails_after: int | None = None, how: Any = "left"
) -> whale.Topology:
    """Return a job that reads a fifth of the changes, then a fifth of the rows, and so on."""
    topology = whale.Topology("changing")
    rows = PacedTable(
        ROWS, fails_after=fails_after, pause_ms=10_000, begins_ns=BEGIN_NS + HALF_A_PAUSE_NS
    )
    changes = topology.source(
        PacedTable(CHANGES, pause_ms=10_000, begins_ns=BEGIN_NS), id="changes"
    )
    named = topology.source(rows, id="rows").join_table(
        PEOPLE,
        on={"k": "id"},
        how=how,
        changes=changes,
        delete_when=whale.col("gone"),
        id="named",
        parallelism=parallelism,
    )
    named.sink(whale.sinks.collect(), id="out")
    return topology


def expected() -> list[tuple[int, str | None]]:
    """Return (n, name) of all rows: each finds the changes of its part, and those before."""
    people = dict(zip(PEOPLE["id"].to_pylist(), PEOPLE["name"].to_pylist(), strict=True))
    found, rows, changes = [], ROWS.to_pylist(), CHANGES.to_pylist()
    for part in range(PARTS):
        for change in changes[part * 10 : part * 10 + 10]:
            if change["gone"]:
                people.pop(change["id"], None)
            else:
                people[change["id"]] = change["name"]
        found += [(row["n"], people.get(row["k"])) for row in rows[part * 50 : part * 50 + 50]]
    return found


def settings_with(folder: Path) -> dict[str, object]:
    """Return the settings of a job with frequent checkpoints, which a failure ends."""
    return {
        "checkpoints.url": str(folder),
        "checkpoints.interval_ms": 2_000,
        "runtime.poll_interval_ms": 500,
        "runtime.max_restarts": 0,
        "transport.wtl_ms": 0,
    }


@pytest.mark.parametrize("fails_after", [1, 3])
def test_changes_are_there_after_a_failure(tmp_path: Path, fails_after: int) -> None:
    clock = VirtualClock(BEGIN_NS)
    settings = settings_with(tmp_path)
    with pytest.raises(PlannedFailureError):
        whale.run(topology_of(2, fails_after), clock=clock, settings=settings)
    job = whale.run(topology_of(3), clock=clock, settings=settings, restore="latest")
    checkpoints = job.metrics().checkpoints
    assert checkpoints is not None and checkpoints.restored > fails_after
    out = job.results("out").to_arrow()
    found = zip(out["n"].to_pylist(), out["name"].to_pylist(), strict=True)
    assert sorted(found, key=lambda row: row[0]) == expected()


def test_a_table_of_which_only_keys_are_kept_goes_on(tmp_path: Path) -> None:
    clock, settings = VirtualClock(BEGIN_NS), settings_with(tmp_path)
    with pytest.raises(PlannedFailureError):
        whale.run(topology_of(2, 2, "semi"), clock=clock, settings=settings)
    job = whale.run(topology_of(3, how="semi"), clock=clock, settings=settings, restore="latest")
    out = job.results("out").to_arrow()
    assert sorted(out["n"].to_pylist()) == [n for n, name in expected() if name is not None]


def with_people(
    columns: list[str], wanted: list[str], fails_after: int | None = None, prefix: str = ""
) -> whale.Topology:
    """Return a job that joins rows with a table of such columns, and wants some of the result's."""
    topology = whale.Topology("people")
    rows = PacedTable(ROWS, fails_after=fails_after, pause_ms=10_000, begins_ns=BEGIN_NS)
    people = PEOPLE.append_column("age", [range(KEYS)]).select(columns)
    named = topology.source(rows, id="rows").join_table(people, on={"k": "id"}, id=f"{prefix}named")
    named.select(*wanted, id="wanted").sink(whale.sinks.collect(), id=f"{prefix}out")
    return topology


@pytest.mark.parametrize(
    ("columns", "wanted"),
    [
        pytest.param(["id", "name"], ["n", "age"], id="the table has gained it"),
        pytest.param(["id", "name", "age"], ["n", "age"], id="it was not needed before"),
        pytest.param(["id", "name"], ["n", "name", "age"], id="with those from before"),
    ],
)
def test_a_restored_table_that_lacks_a_column_is_refused(
    columns: list[str], wanted: list[str], tmp_path: Path
) -> None:
    clock = VirtualClock(BEGIN_NS)
    settings = settings_with(tmp_path)
    with pytest.raises(PlannedFailureError):
        whale.run(with_people(columns, ["n", "name"], 2), clock=clock, settings=settings)
    now = with_people(["id", "name", "age"], wanted)
    with pytest.raises(InputError, match="'named' needs column 'age' of its table, of which the"):
        whale.run(now, clock=clock, settings=settings, restore="latest")
    again = with_people(["id", "name", "age"], wanted, prefix="new-")
    without = ["named", "named-table", "out"]
    job = whale.run(
        again, clock=clock, settings=settings, restore_without=without, restore="latest"
    )
    out = job.results("new-out").to_arrow()
    assert out.column_names == wanted
    found = sorted(zip(out["n"].to_pylist(), out["age"].to_pylist(), strict=True))
    asked = [(n, k) for n, k in enumerate(ROWS["k"].to_pylist()) if k < KEYS]
    assert 0 < len(found) < len(asked)
    assert found == asked[-len(found) :]
