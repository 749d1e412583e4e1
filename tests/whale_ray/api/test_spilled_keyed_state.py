"""Keyed processes whose state is on the disk give what they give in memory, in each form."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import whale_ray as whale
from whale_ray import state
from whale_ray.operators.keyed.stored_parts import StoredParts
from whale_ray.state.disk_traffic import DiskTraffic
from whale_ray.state.store import KeyedStore
from whale_ray.tasks.gathered_rows import GatheredRows
from whale_ray.transport.wire.batch import Batch

KEYS, ROWS = 24_000, 50_000
IN_MEMORY = 1 << 26
SCHEMA = whale.Schema.of(k="int64", n="int64", before="int64")


class Rows(whale.KeyedProcess):
    """Emits how many rows its key has had and which was the last; tells what was quiet."""

    n = state.count()
    before = state.value("int64")
    quiet = state.timer()
    schema = SCHEMA

    def on_row(self, row: Any, out: Any) -> None:
        self.n.add(1)
        out.emit_row(k=row.k, n=self.n.get(), before=self.before.get(-1))
        self.before.set(row.number)
        self.quiet.set(out.time_ns + 3_000_000_000)

    def on_timer(self, timer: Any, out: Any) -> None:
        out.emit_row(k=self.key.k, n=-self.n.get(), before=self.before.get())
        if self.n.get() % 2:
            self.clear()


class Compiled(Rows):
    """The same, compiled."""

    @whale.compiled
    def on_row(self, row: Any, out: Any) -> None:
        self.n.add(1)
        out.emit_row(k=row.k, n=self.n.get(), before=self.before.get(-1))
        self.before.set(row.number)
        self.quiet.set(out.time_ns + 3_000_000_000)


class Columns(whale.KeyedProcess):
    """The same without a timer, on columns."""

    n = state.count()
    before = state.value("int64")

    def on_batch(self, batch: Batch, out: Any) -> None:
        slots = self.slots(batch)
        found: dict[str, list[int]] = {"k": batch.column("k").to_pylist(), "n": [], "before": []}
        for slot, number in zip(slots.tolist(), batch.column("number").to_pylist(), strict=True):
            one = np.array([slot])
            found["n"].append(int(self.n[one][0]) + 1)
            found["before"].append(int(self.before[one][0]) if self.before.is_set(one)[0] else -1)
            self.n[one] = found["n"][-1]
            self.before[one] = number
        out.emit(found, batch.times)


def numbered() -> pa.Table:
    """Return rows whose keys repeat at random, 10,000 in each second."""
    numbers = np.arange(ROWS)
    keys = np.random.default_rng(8).integers(0, KEYS, ROWS)
    keys[::7] %= 10  # frequent ones
    at = (numbers * 100).astype("datetime64[us]")
    return pa.table({"k": keys, "number": numbers, "at": at})


def results(process: type[whale.KeyedProcess], state_bytes: int, *, ordered: bool) -> Counter[Any]:
    """Return the rows that come out, each as often as it does."""
    topology = whale.Topology("spilled")
    source = topology.source(whale.sources.arrow(numbered()), id="rows", event_time="at")
    keyed = source.key_by("k").process(process, id="keyed", event_time_order=ordered)
    keyed.sink(whale.sinks.collect(), id="out")
    job = whale.run(topology, settings={"runtime.state_bytes": state_bytes})
    assert (job.metrics().operator("keyed").spilled_bytes > 0) == (state_bytes < IN_MEMORY)
    table = job.results("out").to_arrow()
    return Counter(zip(*table.to_pydict().values(), strict=True))


@pytest.mark.long
@pytest.mark.parametrize(
    ("process", "ordered"),
    # In order of arrival, timers fire with watermarks, which may come earlier or later.
    [(Rows, True), (Compiled, True), (Columns, True), (Columns, False)],
)
def test_state_on_the_disk_changes_no_result(
    process: type[whale.KeyedProcess], ordered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows are taken as they come, or in passes where the kernel has no memory for the pages."""
    passes: list[Batch] = []
    pass_of = KeyedStore.passes
    monkeypatch.setattr(
        KeyedStore, "passes", lambda self, *keys: (passes.append(keys[1]), pass_of(self, *keys))[1]
    )
    in_memory = results(process, IN_MEMORY, ordered=ordered)
    for comes_from_disk in (False, True):
        monkeypatch.setattr(DiskTraffic, "is_heavy", comes_from_disk)
        assert results(process, 1 << 20, ordered=ordered) == in_memory
        assert bool(passes) == comes_from_disk
    assert in_memory.total() >= ROWS


def test_rows_that_wait_on_the_disk_for_a_pass_change_no_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Passes are never due, so that rows wait until there is no more room on the disk for them."""
    in_memory = results(Columns, IN_MEMORY, ordered=False)
    put_off: list[bool] = []
    put_off_of = StoredParts.put_off

    def noted(self: StoredParts, batch: Batch) -> bool:
        put_off.append(put_off_of(self, batch))
        return put_off[-1]

    monkeypatch.setattr(StoredParts, "put_off", noted)
    monkeypatch.setattr(StoredParts, "bytes_gathered_max", 1)
    monkeypatch.setattr(GatheredRows, "is_due", lambda *_: False)
    monkeypatch.setattr(DiskTraffic, "is_heavy", True)
    assert results(Columns, 1 << 20, ordered=False) == in_memory
    assert put_off.count(True) > 1
