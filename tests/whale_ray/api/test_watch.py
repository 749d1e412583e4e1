"""The progress of a job: on a terminal, in a file, of short runs and after interrupts."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whale_ray.api import job as job_module
from whale_ray.api.job import Job, JobRunner
from whale_ray.api.watch import Watch
from whale_ray.cli.main import main
from whale_ray.configs.errors import JobCancelledError
from whale_ray.control.job_states import ALIVE
from whale_ray.control.outcome import JobOutcome
from whale_ray.metrics.checkpoint_metrics import CheckpointMetrics
from whale_ray.metrics.counters import InstanceMetrics, MemberCounters
from whale_ray.metrics.job_metrics import JobMetrics, summarize
from whale_ray.transport.clock import VirtualClock


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def told(looks: Sequence[tuple[str, str]], stream: io.StringIO) -> str:
    watch = Watch("fares", stream, 1.0)
    for state, line in looks:
        watch.show(state, line)
    watch.close()
    return stream.getvalue()


@pytest.mark.parametrize(
    ("failure", "told_of_it"),
    [
        ("", "checkpoint 3 900 B in 250 ms, 2 s ago | trips 1k/s"),
        ("no space", "LAST CHECKPOINT FAILED (2 in all), checkpoint 3 900 B in"),
    ],
)
def test_on_a_terminal_of_80_columns_checkpoints_are_in_sight(
    failure: str, told_of_it: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    names = ("trips", "areas", "fares", "total", "latest", "out")
    began = tuple(InstanceMetrics(name, 0, 0, rows_in=1000) for name in names)
    runner = Short("running")
    runner.ended = replace(
        summarize(names, [MemberCounters(0, 10**9, 0, began)], since_ns=0),
        checkpoints=CheckpointMetrics(9, 2, 3, 900, 90, 250, 2000, failure=failure),
    )
    line = told([("running", Job("id", "fares", runner).status())], Terminal())
    shown = line.removeprefix("\r\033[K").removesuffix("\n")
    assert len(shown) == 79
    assert shown.startswith(f"fares: running | {told_of_it}")


def test_off_a_terminal_a_line_is_written_once() -> None:
    looks = [("starting", "fares: starting")] * 20
    looks += [("running", "a"), ("running", "b"), ("running", "b"), ("running", "a")]
    assert told(looks, io.StringIO()) == "fares: starting\na\nb\na\n"


def test_a_final_state_is_written_once_whatever_the_numbers() -> None:
    looks = [("running", "7 rows")] + [("draining", f"{rows} rows") for rows in range(9)]
    looks += [("finishing", f"finishing {rows}") for rows in range(9)] + [("drained", "9 rows")]
    assert told(looks, io.StringIO()) == (
        "7 rows\n"
        "fares: draining: the sources end, all rows read are processed; "
        "one more signal cancels it\n"
        "finishing 0\n9 rows\n"
    )


def test_on_a_terminal_each_line_is_written_over_the_one_before() -> None:
    looks = [("running", "1 row"), ("running", "2 rows"), ("draining", "3 rows"), ("drained", "4")]
    assert told(looks, Terminal()) == (
        "\r\033[K1 row\r\033[K2 rows"
        "\r\033[Kfares: draining: the sources end, all rows read are processed; one more signal"
        " cancels it\n\r\033[K3 rows\r\033[K4\n"
    )


STATES = st.sampled_from(sorted(ALIVE))


@given(st.lists(st.tuples(STATES, st.sampled_from(["", "a", "b"]))))
def test_no_line_is_written_twice_in_a_row(looks: list[tuple[str, str]]) -> None:
    lines = told(looks, io.StringIO()).splitlines()
    assert all(one != after for one, after in pairwise(lines) if not one.startswith("fares"))
    assert sum(line.startswith("fares: draining") for line in lines) <= 1
    runs = [line for line in lines if not line.startswith("fares")]
    assert len(runs) <= len([line for _, line in looks if line])


class Short(JobRunner):
    """A job that has ended when somebody first waits for it."""

    def __init__(self, how: str = "finished", **facts: Any) -> None:
        self.how, self.facts = how, facts
        begun = (
            InstanceMetrics("rows", 0, 0, rows_in=200),
            InstanceMetrics("out", 0, 0, rows_in=9),
        )
        counters = [MemberCounters(0, 10**9, 0, begun)]
        self.ended = summarize(["rows", "out"], counters, since_ns=0)

    def state(self) -> str:
        return self.how

    def metrics(self) -> JobMetrics:
        return self.ended

    def stop(self, drain: bool) -> None:
        pass  # it has ended

    def reconfigure(self, request: Any) -> None:
        raise NotImplementedError

    def join(self, timeout_s: float) -> JobOutcome:
        return JobOutcome(self.how, {}, self.ended, 1.25, restarts=0, workers=1, **self.facts)


def test_the_last_line_of_a_short_run_has_its_totals() -> None:
    stream = io.StringIO()
    Job("id", "fares", Short()).wait(watch=stream)
    assert stream.getvalue() == "fares: finished in 1.2 s | rows 200/s | out 9/s\n"


class Slow(Short):
    """A job that runs on, whose controller takes three seconds to say so."""

    outlives_process = True

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__("restarting")
        self.clock = clock
        self.asked = 0

    def join(self, timeout_s: float) -> JobOutcome | None:
        self.asked += 1
        self.clock.sleep_ns(3_000_000_000)
        return None


def test_who_waits_for_a_slow_controller_waits_no_longer_than_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = VirtualClock()
    monkeypatch.setattr(job_module, "SystemClock", lambda: clock)
    runner, stream = Slow(clock), io.StringIO()
    with pytest.raises(TimeoutError, match="has not ended within 5 s"):
        Job("id", "fares", runner).wait(5, watch=stream, line=lambda _metrics: str(runner.asked))
    assert runner.asked == 2
    assert stream.getvalue() == "fares: restarting | 1\n"


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        ({}, "sinks that publish at its end published nothing; run it again for all rows"),
        ({"bounded": False}, "its output is what it had published; run it again for all rows"),
        (
            {"checkpoint": "/data/17"},
            "sinks that publish at its end published nothing; "
            "restore='/data/17' goes on from its newest checkpoint",
        ),
    ],
)
def test_a_job_that_a_signal_cancelled_says_so_once_and_how_to_go_on(
    facts: dict[str, Any], told: str, caplog: pytest.LogCaptureFixture
) -> None:
    """`wait` returns all the same; only `outcome` and `results` raise."""
    job = Job("id", "fares", Short("cancelled", **facts)).wait().wait()
    assert caplog.messages == [
        f"job 'fares' was cancelled (Ctrl-C, SIGTERM, SIGHUP or whale-ray stop): {told}"
    ]
    with pytest.raises(JobCancelledError, match=told.partition(";")[0]):
        job.outcome()
    caplog.clear()
    Job("id", "fares", Short("cancelled", **facts)).stop(drain=False)
    Job("id", "fares", Short("cancelled", **facts)).abandon()
    assert caplog.messages == []  # the caller has asked for it


def test_a_users_topology_shows_its_progress_and_previews_its_rows(
    tmp_path: Any, monkeypatch: Any, capsys: Any, no_leaks: None
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fares.py").write_text(
        "import whale_ray as whale\n"
        "t = whale.Topology('fares')\n"
        "rows = [{'cab': f'c{i}', 'km': i / 8, 'note': None} for i in range(8)]\n"
        "t.source(whale.sources.iterable(rows, schema={'cab': str, 'km': float, 'note': str}),"
        " id='trips').sink(whale.sinks.collect(), id='out')\n"
    )
    for on in ("inline", "processes"):
        assert main(["run", "fares.py", "--on", on]) == 0
        out, err = capsys.readouterr()
        assert err.splitlines()[-1].startswith("fares: finished in ")
        assert "| trips 8 rows read, " in err
        assert err.endswith("/s | out 8 rows\n")
        assert out == (
            "out: 8 rows in memory\n"
            "  cab  km     note\n"
            "  c0   0      -\n"
            "  c1   0.125  -\n"
            "  c2   0.25   -\n"
            "  c3   0.375  -\n"
            "  c4   0.5    -\n"
            "  … and 3 more\n"
        )


def test_of_rows_that_were_printed_none_are_said_to_be_in_memory(
    tmp_path: Any, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fares.py").write_text(
        "import whale_ray as whale\n"
        "t = whale.Topology('fares')\n"
        "source = t.source(whale.sources.iterable([{'km': 3}]), id='trips')\n"
        "source.sink(whale.sinks.print(), id='out')\n"
    )
    assert main(["run", "fares.py", "--on", "inline"]) == 0
    assert capsys.readouterr().out == "{'km': 3}\nout: 1 rows passed on, none of them kept\n"


@given(
    st.lists(st.tuples(*[st.integers(0, 10**12)] * 3), min_size=2, max_size=2),
    st.integers(1, 10**10),
)
def test_shares_lie_between_0_and_100_percent(
    counters: list[tuple[int, int, int]], elapsed_ns: int
) -> None:
    """A call that took long is charged when it ends; a restart begins to count anew."""
    before, after = (
        MemberCounters(
            0,
            at_ns,
            0,
            (InstanceMetrics("join", 0, 0, rows_in=rows, busy_ns=busy, blocked_ns=blocked),),
        )
        for at_ns, (rows, busy, blocked) in zip((0, elapsed_ns), counters, strict=True)
    )
    found = summarize(["join"], [after], [before]).operator("join")
    assert 0 <= found.busy <= 1
    assert 0 <= found.back_pressured <= 1
    assert found.rate_per_s >= 0


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("to_pandas", r"job.results\('out'\).to_pandas\(\)"),
        ("toPandas", r"job.results\('out'\).to_pandas\(\)"),
        ("show", r"job.results\('out'\).preview\(\)"),
        ("cancel", r"job.stop\(drain=False\)"),
    ],
)
def test_a_missing_attribute_of_a_job_is_answered_with_its_replacement(
    name: str, instead: str
) -> None:
    job: Any = Job("id", "fares", Short())
    with pytest.raises(
        AttributeError, match=f"'Job' object has no attribute '{name}': write {instead}"
    ):
        getattr(job, name)
    assert not hasattr(job, "nonsense")


class Full(io.StringIO):
    """A stream on a disk that is full from the second line on."""

    def __init__(self, error: Exception, terminal: bool) -> None:
        super().__init__()
        self.error, self.terminal, self.asked = error, terminal, 0

    def isatty(self) -> bool:
        return self.terminal

    def write(self, text: str) -> int:
        self.asked += 1
        if self.asked > 1:
            raise self.error
        return super().write(text)


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), ValueError("closed")])
def test_a_line_that_cannot_be_written_is_the_last(error: Exception, terminal: bool) -> None:
    stream = Full(error, terminal)
    watch = Watch("fares", stream, 1.0)
    for line in ("one", "two", "three"):
        watch.show("running", line)
    watch.show("draining", "four")
    watch.report_restarts(1, 0, "worker 0 died")
    watch.close()
    assert "one" in stream.getvalue()
    assert stream.asked == 2
    assert not watch.due(1e9)


def test_a_stream_that_was_closed_ends_no_job() -> None:
    stream = io.StringIO()
    stream.close()
    watch = Watch("fares", stream, 1.0)
    watch.show("running", "one")
    watch.close()
    assert not watch.due(1e9)
