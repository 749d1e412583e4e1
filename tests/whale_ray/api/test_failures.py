"""What goes wrong: a user's function, a bad row, a killed worker, a killed driver, Ctrl-C."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any, Literal

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import whale_ray as whale
from tests.whale_ray.api.drivers import endless_driver
from whale_ray.api.submission import submit
from whale_ray.operators.sinks.base import Staged
from whale_ray.operators.sinks.collect import CollectSink


def rows(count: int) -> list[dict[str, Any]]:
    return [{"k": i % 11, "v": i} for i in range(count)]


def explode_at_13(row: Any) -> dict[str, Any]:
    if row.v == 13:
        raise ZeroDivisionError("thirteen")
    return {"v": row.v}


class FailsOnOpen(whale.Process):
    def open(self, context: Any) -> None:
        raise ValueError("no such model file")

    def on_batch(self, batch: whale.Batch, out: Any) -> None:
        return None


def one_operator(operator: Any) -> whale.Topology:
    topology = whale.Topology("failing")
    source = topology.source(whale.sources.iterable(rows(100)), id="rows")
    operator(source).sink(whale.sinks.collect(), id="out")
    return topology


def test_a_failing_function_shows_its_own_traceback_operator_instance_and_row(
    one_host: Any,
) -> None:
    topology = one_operator(lambda source: source.map(explode_at_13, id="explode"))
    with pytest.raises(whale.errors.UserFunctionError) as caught:
        one_host(topology)
    lines = str(caught.value).splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert "explode_at_13" in lines[1] and "test_failures.py" in lines[1]
    assert lines[-2] == "ZeroDivisionError: thirteen"
    assert lines[-1].startswith("in operator 'explode', instance 0; input: ")
    assert lines[-1].endswith("{k=2, v=13}")
    assert "nodes.py" not in str(caught.value)


def test_a_date_that_python_does_not_have_is_refused_in_a_line() -> None:
    topology = whale.Topology("far")
    days = pa.table({"day": pa.array([0, 10_000_000], pa.date32())})
    source = topology.source(whale.sources.arrow(days), id="days")
    source.map(lambda row: {"month": row.day.month}, id="month").sink(
        whale.sinks.collect(), id="out"
    )
    with pytest.raises(whale.errors.InputError, match="^operator 'month': column 'day': a date32 "):
        whale.run(topology)


def test_a_failing_open_is_named(one_host: Any) -> None:
    topology = one_operator(
        lambda source: source.key_by("k").process(FailsOnOpen, id="model", parallelism=2)
    )
    with pytest.raises(whale.errors.UserFunctionError, match="ValueError: no such model file"):
        one_host(topology)


class CannotBeAborted(CollectSink):
    def open(self, context: Any, token: str) -> Any:
        def abort() -> None:
            ABORTED.append(context.operator_id)
            raise OSError("the server is gone")

        faulty: Any = super().open(context, token)
        faulty.abort = abort
        return faulty


ABORTED: list[str] = []


class CannotBeOpened(whale.testing.ListSource):
    def open(self, context: Any) -> Any:
        raise ValueError("no such topic")


def test_what_fails_first_is_told_and_all_that_was_opened_before_is_closed() -> None:
    """The sinks behind a source are opened before it."""
    topology = whale.Topology("failing")
    source = topology.source(CannotBeOpened([]), id="rows")
    for name in "ab":
        source.sink(CannotBeAborted(), id=name)
    ABORTED.clear()
    with pytest.raises(whale.errors.UserFunctionError) as caught:
        whale.run(topology)
    assert "no such topic" in str(caught.value) and "server" not in str(caught.value)
    assert sorted(ABORTED) == ["a", "b"]


class Reemit(whale.Process):
    def on_row(self, row: Any, out: Any) -> None:
        out.emit_row(v=row["v"])


def null_keys(on_null: Literal["fail", "drop"]) -> whale.Topology:
    topology = whale.Topology("null-keys")
    values = [{"k": None if i % 10 == 0 else f"k{i}", "v": i} for i in range(100)]
    source = topology.source(whale.sources.iterable(values), id="rows")
    keyed = source.key_by("k", on_null=on_null)
    keyed.process(Reemit, id="again", parallelism=2).sink(whale.sinks.collect(), id="out")
    return topology


def test_a_null_key_is_refused_with_its_row(one_host: Any) -> None:
    with pytest.raises(whale.errors.BadRowError) as caught:
        one_host(null_keys("fail"))
    text = str(caught.value)
    assert text.startswith("operator 'rows' sends a row with a null key to 'again' (key_by k): ")
    assert "on_null='drop'" in text


def test_null_keys_are_dropped_and_counted_if_asked(one_host: Any) -> None:
    job = one_host(null_keys("drop"))
    assert job.results("out").rows == 90
    assert job.metrics().operator("rows").rows_dropped == {"null key": 10}


def test_a_partition_that_is_null_is_refused_with_its_row() -> None:
    """What lies in memory at the place of a null is no number of an instance."""
    topology = whale.Topology("null-partitions")
    values = [{"v": 0}, {"v": 1}, {"v": None}]
    source = topology.source(whale.sources.iterable(values), id="rows")
    divided = source.partition_by(lambda batch, parallelism: batch["v"] % parallelism)
    divided.process(Reemit, id="again", parallelism=2).sink(whale.sinks.collect(), id="out")
    with pytest.raises(whale.errors.BadRowError, match=r"'rows' returned a null for \{v=None\}"):
        whale.run(topology)


def test_rows_without_a_time_of_their_own_are_refused_where_time_matters(one_host: Any) -> None:
    class Forget(whale.Process):
        def on_batch(self, batch: whale.Batch, out: Any) -> None:
            out.emit({"v": batch["v"][:1].copy()})

    topology = whale.Topology("timeless")
    values = [{"v": i, "t": i} for i in range(50)]
    source = topology.source(
        whale.sources.iterable(values), id="rows", event_time="t", event_time_unit="ms"
    )
    forgetful = source.key_by("v").process(Forget, id="forget", parallelism=1)
    forgetful.key_by("v").process(Reemit, id="again", parallelism=1).sink(
        whale.sinks.collect(), id="out"
    )
    with pytest.raises(whale.errors.TopologyError, match="'forget' emitted rows without event"):
        one_host(topology)


def test_an_object_that_cannot_travel_is_named_before_anything_starts(no_leaks: None) -> None:
    import threading

    lock = threading.Lock()
    topology = one_operator(lambda source: source.map(lambda row: {"v": lock}, id="locked"))
    with pytest.raises(whale.errors.UsageError, match="operator 'locked' .* cannot be sent"):
        submit(topology, on="processes", workers=2).wait(30)


class Sentinel(whale.Process):
    """Kills its own worker, once: at the first attempt, in the middle of the input."""

    def open(self, context: Any) -> None:
        self.attempt, self.sum = context.attempt, 0

    def on_batch(self, batch: whale.Batch, out: Any) -> None:
        self.sum += int(batch["v"].sum())
        if self.attempt == 0 and self.sum > 20_000:
            os.kill(os.getpid(), signal.SIGKILL)

    def close(self, out: Any) -> None:
        out.emit_row(total=self.sum)


def killing(path: Path, count: int = 1000) -> whale.Topology:
    topology = whale.Topology("killing")
    source = topology.source(whale.sources.iterable(rows(count)), id="rows")
    source.key_by("k").process(Sentinel, id="sums", parallelism=3).sink(
        whale.sinks.parquet(path), id="out"
    )
    return topology


SLOW = {"runtime.source_batch_rows": 10, "transport.wtl_ms": 0.0}


def test_a_killed_worker_restarts_the_job_and_the_result_is_still_right(
    tmp_path: Path, no_leaks: None
) -> None:
    job = submit(killing(tmp_path / "out"), on="processes", workers=2, settings=SLOW).wait(100)
    table = job.results("out").to_arrow()
    assert sum(table["total"].to_pylist()) == sum(range(1000))
    assert job.outcome().restarts == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]


def test_without_restarts_a_killed_worker_fails_the_job_and_leaves_no_output(
    tmp_path: Path, no_leaks: None
) -> None:
    settings = {**SLOW, "runtime.max_restarts": 0}
    job = submit(killing(tmp_path / "out"), on="processes", workers=2, settings=settings)
    with pytest.raises(whale.errors.WorkerDiedError, match="ended with signal 9"):
        job.wait(100)
    assert list(tmp_path.iterdir()) == []


class Locked(Staged):
    """A receipt that no pickle takes."""

    def __getstate__(self) -> Any:
        raise TypeError("cannot pickle a lock")


class LockedSink(CollectSink):
    def open(self, context: Any, token: str) -> Any:
        writer = super().open(context, token)
        stage = writer.stage
        faulty: Any = writer
        faulty.stage = lambda: Locked(context.instance, stage().rows)
        return writer


def test_a_receipt_that_cannot_be_sent_names_the_worker_and_the_step(no_leaks: None) -> None:
    topology = whale.Topology("locked")
    topology.source(whale.sources.iterable(rows(10)), id="rows").sink(LockedSink(), id="out")
    with pytest.raises(whale.errors.JobError) as caught:
        submit(topology, on="processes", workers=1).wait(100)
    assert str(caught.value) == (
        "what worker 0 returned at step 'stage' cannot be sent to the controller: TypeError: "
        "cannot pickle a lock; a sink's receipts and errors must be picklable"
    )


@pytest.fixture
def driver(tmp_path: Path, no_leaks: None) -> Any:
    with endless_driver(tmp_path / "out") as process:
        yield process, tmp_path


def test_nothing_remains_of_a_job_whose_driver_is_killed(driver: Any) -> None:
    process, folder = driver
    workers = psutil.Process(process.pid).children(recursive=True)
    assert len(workers) >= 2  # they have a parent of their own, which starts them
    process.kill()
    _, alive = psutil.wait_procs(workers, timeout=60)
    assert alive == []
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_a_signal_drains_the_job_and_publishes_what_was_read(driver: Any, number: int) -> None:
    process, folder = driver
    process.send_signal(number)
    printed, _ = process.communicate(timeout=150)
    assert process.returncode == 0
    values = sorted(pq.read_table(folder / "out.partial")["v"].to_pylist())
    path = folder / "out.partial"
    assert printed.removeprefix("draining\n") == f"drained 0 {len(values)} {path}\n"
    assert values and values == list(range(len(values)))
    assert [path.name for path in folder.iterdir()] == ["out.partial"]
