"""Jobs that lose a worker, all they consist of, or are stopped, and go on: each row comes once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import whale_ray as whale
from tests.whale_ray.applications.paced_table import PacedTable, PlannedFailureError
from tests.whale_ray.user_code.gated_numbers import (
    Counted,
    GatedNumbers,
    expected,
    kill_worker_once,
)
from whale_ray.configs.errors import InputError, UsageError, UserFunctionError
from whale_ray.testing import VirtualClock
from whale_ray.transport.clock import SystemClock

COUNT, GATE = 2000, 1000
NUMBERS = pa.table({"key": [n % 5 for n in range(500)], "n": range(500)})
OFTEN: dict[str, Any] = {"checkpoint_interval": "50 milliseconds"}


def numbers(
    folder: Path, *, count: int = COUNT, kill_at: int | None = None, parallelism: int = 2
) -> whale.Topology:
    """Return the topology that numbers the rows of each key; it waits for the file `go`."""
    topology = whale.Topology("numbers")
    rows = topology.source(
        GatedNumbers(count, GATE, folder / "go"), id="numbers", parallelism=parallelism
    )
    if kill_at is not None:
        killed = folder / "killed"
        rows = rows.map(
            lambda row: {
                "key": row.key,
                "number": kill_worker_once(row.number, kill_at, killed),
            },
            id="killer",
        )
    counted = rows.key_by("key").process(Counted, id="counted", parallelism=parallelism)
    counted.sink(whale.sinks.parquet(str(folder / "out")), id="out")
    return topology


def visible(folder: Path) -> list[tuple[int, int]]:
    """Return (key, nth) of all rows that readers of the output find."""
    found = []
    for part in (folder / "out").glob("*.parquet"):
        table = pq.read_table(part)
        found += list(zip(table["key"].to_pylist(), table["nth"].to_pylist(), strict=True))
    return sorted(found)


def until(true: Callable[[], bool], what: str, limit_s: float = 150.0) -> None:
    clock = SystemClock()
    end_ns = clock.monotonic_ns() + round(limit_s * 1e9)
    while not true():
        assert clock.monotonic_ns() < end_ns, what
        clock.sleep_ns(5_000_000)


def checkpoints_of(job: whale.Job) -> int:
    metrics = job.metrics().checkpoints
    return 0 if metrics is None else metrics.count


def test_a_job_that_loses_a_worker_goes_on_and_each_row_comes_once(
    tmp_path: Path, no_leaks: None
) -> None:
    topology = numbers(tmp_path, kill_at=GATE + 500)
    job = whale.submit(topology, on="processes", workers=2, checkpoints=tmp_path / "state", **OFTEN)
    until(lambda: len(visible(tmp_path)) == GATE, "the first half is not visible")
    (tmp_path / "go").touch()
    job.wait(60)
    assert (job.state, job.outcome().restarts) == ("finished", 1)
    assert visible(tmp_path) == expected(COUNT)
    metrics = job.metrics().checkpoints
    assert metrics is not None
    assert metrics.restored > 0
    assert metrics.aligned_p99_ms is not None
    with pytest.raises(UsageError, match="has ended behind its checkpoint"):
        whale.submit(
            topology, on="processes", checkpoints=tmp_path / "state", restore="latest", **OFTEN
        )


def test_a_savepoint_of_a_job_that_has_failed_says_why(tmp_path: Path, no_leaks: None) -> None:
    topology = whale.Topology("failing")
    rows = topology.source(whale.sources.arrow(NUMBERS), id="numbers")
    rows.map(lambda row: {"n": row.n // 0}, id="divide").sink(whale.sinks.collect(), id="out")
    job = whale.submit(topology, on="processes", workers=1, checkpoints=tmp_path / "state")
    until(lambda: job.state == "failed", "it does not fail")
    with pytest.raises(UserFunctionError, match="ZeroDivisionError"):
        job.savepoint()


def test_a_job_of_which_an_instance_of_the_source_has_ended_goes_on_again_and_again(
    tmp_path: Path, no_leaks: None
) -> None:
    topology = numbers(tmp_path, count=GATE + 50)  # behind the gate one instance has rows left
    kept: dict[str, Any] = {"checkpoints": tmp_path / "state", **OFTEN}
    job = whale.submit(topology, on="processes", workers=2, **kept)
    until(lambda: len(visible(tmp_path)) == GATE, "the first rows are not visible")
    for _ in range(2):
        job.stop(savepoint=True, timeout_s=150)
        job = whale.submit(topology, on="processes", workers=2, restore="latest", **kept)
    (tmp_path / "go").touch()
    job.wait(60)
    assert visible(tmp_path) == expected(GATE + 50)


def test_a_job_stopped_with_a_savepoint_goes_on_with_another_parallelism(
    tmp_path: Path, no_leaks: None
) -> None:
    state = tmp_path / "state"
    first = whale.submit(numbers(tmp_path), on="processes", workers=2, checkpoints=state, **OFTEN)
    until(lambda: checkpoints_of(first) > 0, "there is no checkpoint")
    with pytest.raises(UsageError, match=r"^Job\.stop\(drain=…\) got 'savepoint': pass True or"):
        first.stop("savepoint")  # type: ignore[arg-type]  # it would drain the job
    with pytest.raises(UsageError, match=r"^Job\.savepoint\(timeout_s=…\) got a PosixPath: pass "):
        first.savepoint(tmp_path)  # type: ignore[arg-type]  # no duration
    with pytest.raises(UsageError, match="^job 'numbers' keeps no result: it is unbounded"):
        first.results("out")  # it would wait without an end
    kept = first.savepoint(None)
    first.stop(savepoint=True, timeout_s=150)
    assert first.state == "stopped"
    with pytest.raises(UsageError, match=r"^job 'numbers' has ended \(stopped\): it takes no sav"):
        first.savepoint()
    assert visible(tmp_path) == expected(GATE)
    (tmp_path / "go").touch()
    second = whale.submit(
        numbers(tmp_path, parallelism=3),
        on="processes",
        workers=3,
        checkpoints=state,
        restore="latest",
        **OFTEN,
    )
    second.wait(60)
    assert visible(tmp_path) == expected(COUNT)
    assert Path(kept).exists()


@pytest.mark.long
def test_what_kills_everything_is_survived(tmp_path: Path, no_leaks: None) -> None:
    """The driver and its workers are killed; `resume` needs nothing but the folder."""
    state = tmp_path / "state"
    script = tmp_path / "driver.py"
    script.write_text(
        "from pathlib import Path\n"
        "import whale_ray as whale\n"
        "from tests.whale_ray.api.test_checkpoints import OFTEN, numbers\n"
        f"folder = Path({str(tmp_path)!r})\n"
        "job = whale.submit(numbers(folder), on='processes', workers=2,\n"
        "                   checkpoints=folder / 'state', **OFTEN)\n"
        "job.wait()\n"
    )
    root = Path(__file__).parents[3]
    driver = subprocess.Popen(
        [sys.executable, str(script)], env={**os.environ, "PYTHONPATH": str(root)}
    )
    try:
        until(lambda: len(visible(tmp_path)) == GATE, "the first half is not visible")
    finally:
        driver.send_signal(signal.SIGKILL)
        driver.wait()
    script.unlink()
    (tmp_path / "go").touch()
    job = whale.resume(state, workers=1)  # on processes, as before
    job.wait(60)
    assert job.state == "finished"
    assert visible(tmp_path) == expected(COUNT)


def test_a_bounded_job_publishes_at_its_end_what_it_staged_before(
    tmp_path: Path, no_leaks: None
) -> None:
    topology = whale.Topology("bounded")
    killed = tmp_path / "killed"
    rows = topology.source(whale.sources.iterable([{"v": v} for v in range(3000)]), id="rows")
    rows.map(lambda row: {"v": kill_worker_once(row.v, 2500, killed)}, id="killer").sink(
        whale.sinks.parquet(str(tmp_path / "out")), id="out"
    )
    settings = {"runtime.source_batch_rows": 10, "checkpoints.interval_ms": 10}
    job = whale.submit(
        topology,
        on="processes",
        workers=1,
        checkpoints=tmp_path / "state",
        settings=settings,
    )
    job.wait(60)
    assert job.outcome().restarts == 1
    assert sorted(job.results("out").to_arrow()["v"].to_pylist()) == list(range(3000))


def test_a_topology_that_has_lost_an_operator_goes_on_only_if_the_user_says_so(
    tmp_path: Path, no_leaks: None
) -> None:
    state = tmp_path / "state"
    first = whale.submit(numbers(tmp_path), on="processes", workers=1, checkpoints=state, **OFTEN)
    until(lambda: len(visible(tmp_path)) == GATE, "the first half is not visible")
    first.stop(savepoint=True, timeout_s=150)
    (tmp_path / "go").touch()
    topology = whale.Topology("numbers")
    rows = topology.source(GatedNumbers(COUNT, GATE, tmp_path / "go"), id="numbers", parallelism=1)
    flat = rows.map(lambda row: {"key": row.key, "nth": 0, "number": row.number}, id="flat")
    flat.sink(whale.sinks.parquet(str(tmp_path / "out")), id="out")
    again: dict[str, Any] = {"on": "processes", "workers": 1, "checkpoints": state, **OFTEN}
    with pytest.raises(InputError, match="'counted', which the topology lacks: give the operator"):
        whale.submit(topology, restore="latest", **again)
    with pytest.raises(InputError, match="names 'count', which the checkpoint does not have"):
        whale.submit(topology, restore="latest", restore_without=["count"], **again)
    job = whale.submit(topology, restore="latest", restore_without="counted", **again)
    job.wait(60)
    assert len(visible(tmp_path)) == COUNT


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"restore": "latest"}, "restore= has no effect without checkpoints="),
        ({"checkpoint_interval": "1 second"}, "checkpoint_interval= has no effect without"),
    ],
)
def test_options_without_effect_are_refused(
    options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=message):
        whale.run(numbers(tmp_path), **options)


@pytest.mark.parametrize(
    ("on_loss", "told", "then", "cost"),
    [
        pytest.param(
            "fail",
            "if a worker dies the job fails, and what was read since its last part, up to 1,234 ms,"
            " is lost",
            "the job fails",
            "what was read since the last part, up to 1,234 ms",
            id="fail",
        ),
        pytest.param(
            "restart-at-least-once",
            "if a worker dies the sources are read again from their start, and rows come twice",
            "sources are read again from their start",
            "rows come twice",
            id="restart",
        ),
    ],
)
def test_what_a_failure_costs_an_unbounded_job_without_checkpoints_is_said(
    on_loss: str, told: str, then: str, cost: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    topology = numbers(tmp_path, count=10, parallelism=1)
    settings = {"runtime.on_loss": on_loss, "runtime.commit_interval_ms": 1234}
    explained = str(topology.explain(settings=settings))
    assert "No checkpoints: checkpoints= names a folder for them" in explained
    (row,) = [line for line in explained.splitlines() if cost in line]
    assert then in row
    whale.run(topology, settings=settings)
    assert caplog.messages == [
        f"topology 'numbers' does not end ('numbers') and takes no checkpoints: {told}."
        " With checkpoints='folder' it goes on where it was, and each row comes once"
    ]
    caplog.clear()
    kept = tmp_path / "kept"
    kept.mkdir()
    whale.run(numbers(kept, count=10, parallelism=1), checkpoints=tmp_path / "state")
    assert caplog.messages == []


def run_paced(
    place: str | None, fails_after: int | None = None, restore: str | None = None
) -> whale.Job:
    topology = whale.Topology("paced")
    rows = topology.source(PacedTable(NUMBERS, fails_after=fails_after), id="rows")
    counted = rows.group_by("key").agg(whale.functions.sum("n").alias("sum"), id="sums")
    counted.sink(whale.sinks.collect(), id="out")
    settings = {"checkpoints.interval_ms": 500, "runtime.poll_interval_ms": 50}
    return whale.run(
        topology, clock=VirtualClock(), checkpoints=place, restore=restore, settings=settings
    )


@pytest.mark.parametrize("url", ["memory://kept/a b", "file://{folder}/a b", "local://{folder}/c"])
def test_a_job_goes_on_from_urls_of_any_kind(tmp_path: Path, url: str) -> None:
    place = url.format(folder=tmp_path)
    with pytest.raises(PlannedFailureError):
        run_paced(place, fails_after=3)
    job = run_paced(place, restore="latest")
    metrics = job.metrics().checkpoints
    assert metrics is not None and metrics.restored >= 3
    out = job.results("out").to_arrow().group_by("key").aggregate([("sum", "max")]).to_pylist()
    found = {row["key"]: row["sum_max"] for row in out}
    assert found == {key: sum(range(key, 500, 5)) for key in range(5)}


SECOND_NS = 1_000_000_000
ALARM_NS = 3_500_000_000


class Alarm(whale.KeyedProcess):
    """Sets a timer of the clock at the first row of each key, and says when it fires."""

    schema = whale.Schema.of(key="int64", seen="int64", ended="bool")

    rows = whale.state.count()
    alarm = whale.state.timer("processing")

    def on_row(self, row: Any, out: Any) -> None:
        if not self.rows.get():
            self.alarm.set(ALARM_NS)
        self.rows.add(1)

    def on_timer(self, timer: Any, out: Any) -> None:
        out.emit_row(key=self.key.key, seen=self.rows.get(), ended=self.input_ended)


@pytest.mark.parametrize("resumed_s", [3, 9], ids=["before it is due", "behind"])
def test_a_timer_of_the_clock_set_before_a_failure_fires_once_behind_it(
    tmp_path: Path,
    resumed_s: int,
) -> None:
    def run(begin_s: int, fails_after: int | None, restore: str | None) -> whale.Job:
        topology = whale.Topology("alarms")
        rows = topology.source(PacedTable(NUMBERS, fails_after=fails_after), id="rows")
        alarms = rows.key_by("key").process(Alarm, id="alarms")
        alarms.sink(whale.sinks.collect(), id="out")
        return whale.run(
            topology,
            clock=VirtualClock(begin_s * SECOND_NS),
            checkpoints=tmp_path,
            restore=restore,
            settings={"checkpoints.interval_ms": 500, "runtime.poll_interval_ms": 50},
        )

    with pytest.raises(PlannedFailureError):
        run(0, 3, None)
    job = run(resumed_s, None, "latest")
    found = sorted(job.results("out").to_arrow().to_pylist(), key=lambda row: row["key"])
    assert found == [{"key": key, "seen": 60, "ended": False} for key in range(5)]


def test_a_source_or_a_sink_that_opens_something_else_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(PlannedFailureError):
        run_paced(str(tmp_path), fails_after=3)
    with monkeypatch.context() as patch:
        patch.setattr(PacedTable, "open_at", lambda *_: None)
        told = r"^operator 'rows': PacedTable\.open_at\(\) returned None: .* return a SourceReader$"
        with pytest.raises(UsageError, match=told):
            run_paced(str(tmp_path), restore="latest")
        with pytest.raises(UsageError, match=r"PacedTable\.open\(\) returned None"):
            run_paced(None)
    with monkeypatch.context() as patch:
        patch.setattr(
            f"{PacedTable.__module__}._PacedReader.position", lambda _: {"row": float("nan")}
        )
        told = r"source 'rows': _PacedReader\.position\(\) returned other values than JSON has: Out"
        with pytest.raises(UsageError, match=told):
            run_paced(str(tmp_path / "other"))
    sink = type(whale.sinks.collect())
    monkeypatch.setattr(sink, "open", lambda *_: [])
    told = rf"^operator 'out': {sink.__name__}\.open\(\) returned \[\]: .* return a SinkWriter$"
    with pytest.raises(UsageError, match=told):
        run_paced(None)


def test_checkpoints_in_no_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^the checkpoint folder '' names none: write a path"):
        whale.run(numbers(tmp_path), checkpoints="")
    with pytest.raises(UsageError, match=r"^resume\(path=…\) got None: pass the path or URL of"):
        whale.resume(None)  # type: ignore[arg-type]  # no path


def test_the_memory_of_one_process_is_no_place_for_the_checkpoints_of_others(
    tmp_path: Path,
) -> None:
    with pytest.raises(UsageError, match=r"in memory://x are in the memory of one process"):
        whale.submit(numbers(tmp_path), on="processes", workers=1, checkpoints="memory://x")


class Unrepeatable(GatedNumbers):
    """A source that cannot go on from a position."""

    open_at = whale.sources.Source.open_at


def test_a_source_without_positions_is_refused_by_name(tmp_path: Path) -> None:
    topology = whale.Topology("once")
    source = Unrepeatable(1, 1, tmp_path / "go")
    topology.source(source, id="rows").sink(whale.sinks.parquet(str(tmp_path / "out")), id="out")
    with pytest.raises(UsageError, match=r"source 'rows' .* has no positions"):
        whale.run(topology, checkpoints=tmp_path / "state")
