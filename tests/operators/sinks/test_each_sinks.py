"""Sinks that pass rows to a function, or print them: every row, in order; errors name the row."""

from __future__ import annotations

import ast
import io
import sys
from pathlib import Path
from typing import Any

import pytest

import whale_ray as whale
import whale_ray.testing as whale_testing
from whale_ray.errors import OutputError, TopologyError, UsageError, UserFunctionError

ROWS = [{"x": 1, "s": "a"}, {"x": 2, "s": None}, {"x": 3, "s": "ä\n"}]


def run(sink: whale.sinks.Sink) -> whale.sinks.SinkResult:
    topology = whale.Topology("each")
    topology.source(whale.sources.iterable(ROWS), id="rows").sink(sink, id="out")
    return whale.run(topology).results("out")


def test_every_row_goes_to_the_function_in_order() -> None:
    seen: list[dict[str, Any]] = []
    result = run(whale.sinks.each(lambda row: seen.append(dict(row))))
    assert seen == ROWS
    assert (result.rows, result.preview()) == (3, [])
    for take in (result.to_arrow, result.to_pandas):
        with pytest.raises(UsageError, match=r"kept none; .* whale\.sinks\.collect\(\)"):
            take()


def test_a_function_on_columns_gets_batches() -> None:
    seen: list[int] = []
    run(whale.sinks.each(whale.columns(lambda batch: seen.extend(batch["x"].tolist()))))
    assert seen == [1, 2, 3]


def test_an_unbounded_job_passes_every_row() -> None:
    """Publishing parts does not affect the rows passed, and the job succeeds."""
    seen: list[int] = []
    items: list[Any] = [*({"x": i} for i in range(100)), whale_testing.EndOfInput()]
    topology = whale.Topology("endless")
    source = whale_testing.ListSource(items, bounded=False, batch_rows=10)
    source.bounded = False
    topology.source(source, id="rows").sink(
        whale.sinks.each(lambda row: seen.append(row.x)), id="out"
    )
    settings = {"runtime.commit_interval_ms": 1}
    job = whale.run(topology, settings=settings, clock=whale_testing.VirtualClock())
    assert job.state == "finished"
    assert seen == list(range(100))


@pytest.mark.parametrize(
    ("sink", "where"),
    [
        (whale.sinks.each(lambda row: 1 // (row.x - 2)), "row {x=2, s=None}"),
        (whale.sinks.print(lambda row: 1 // (row.x - 2)), "row {x=2, s=None}"),
        (whale.sinks.each(whale.columns(lambda batch: 1 // 0)), "(first of 3 rows)"),
    ],
    ids=["row", "print", "batch"],
)
def test_an_error_of_a_function_names_operator_and_row(sink: whale.sinks.Sink, where: str) -> None:
    with pytest.raises(UserFunctionError) as error:
        run(sink)
    assert "ZeroDivisionError" in str(error.value)
    assert "'out'" in str(error.value)
    assert where in str(error.value)


def test_without_a_standard_output_a_print_sink_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(OutputError, match="^sink 'out' cannot print: Bad file descriptor$"):
        run(whale.sinks.print())


def test_rows_are_printed_a_line_each(capfd: pytest.CaptureFixture[str]) -> None:
    run(whale.sinks.print())
    lines = capfd.readouterr().out.splitlines()
    assert [ast.literal_eval(line) for line in lines] == ROWS
    run(whale.sinks.print(lambda row: f"{row.x}: {row.s!r}"))
    assert capfd.readouterr().out.splitlines() == ["1: 'a'", "2: None", "3: 'ä\\n'"]


def test_in_another_process_functions_write_what_they_like_and_prints_reach_the_driver(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    written = tmp_path / "rows"

    def append(row: Any) -> None:
        with written.open("a") as file:
            file.write(f"{row.x}\n")

    topology = whale.Topology("each")
    rows = topology.source(whale.sources.iterable(ROWS), id="rows")
    rows.sink(whale.sinks.each(append), id="append", parallelism=1)
    rows.sink(whale.sinks.print(lambda row: row.x), id="shown", parallelism=1)
    job = whale.submit(topology, on="processes", workers=1).wait()
    assert (job.results("append").rows, job.results("shown").rows) == (3, 3)
    assert written.read_text() == "1\n2\n3\n"
    lines = capfd.readouterr().out.splitlines()
    assert [line.split()[-1] for line in lines] == ["1", "2", "3"]
    assert all("shown" in line for line in lines)


def printing(rows: int) -> whale.Topology:
    topology = whale.Topology("printing")
    numbers = topology.source(whale.sources.iterable([{"x": x} for x in range(rows)]), id="rows")
    numbers.sink(whale.sinks.print(lambda row: row.x), id="shown", parallelism=1)
    return topology


@pytest.mark.long
def test_rows_from_another_process_are_printed_whatever_functions_may_print(
    capfd: pytest.CaptureFixture[str],
) -> None:
    def talk(row: Any) -> Any:
        sys.stdout.write(f"row {row.x}\n")
        return {"x": row.x}

    topology = whale.Topology("printing")
    numbers = topology.source(whale.sources.iterable([{"x": x} for x in range(20_000)]), id="rows")
    talking = numbers.map(talk, id="talks")
    talking.sink(whale.sinks.print(lambda row: row.x), id="shown", parallelism=1)
    settings = {"runtime.output_lines_per_s": 1}
    job = whale.submit(topology, on="processes", workers=1, settings=settings).wait()
    assert job.results("shown").rows == 20_000
    captured = capfd.readouterr()
    lines = captured.out.splitlines()
    shown = [line.split()[-1] for line in lines if "shown" in line]
    assert shown == [str(x) for x in range(20_000)]
    assert len(lines) - len(shown) < 1_000  # the function's own output is limited, and counted
    assert "lines more, not shown (runtime.output_lines_per_s=1)" in captured.err


class ClosedOutput(io.StringIO):
    """A standard output whose reader has ended."""

    def write(self, text: str) -> int:
        """Fail as writing to a broken pipe does."""
        raise BrokenPipeError(32, "Broken pipe")


def test_an_output_that_the_driver_cannot_write_fails_the_job_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "stdout", ClosedOutput())
    job = whale.submit(printing(100), on="processes", workers=1)
    with pytest.raises(OutputError) as error:
        job.wait()
    assert str(error.value) == "sink 'shown' cannot print: Broken pipe"


def test_a_closed_output_is_reported_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", ClosedOutput())
    with pytest.raises(OutputError) as error:
        run(whale.sinks.print())
    assert str(error.value) == "sink 'out' cannot print: Broken pipe"


def test_mistakes_are_reported_while_building() -> None:
    for function, message in (
        (3, "each takes a function of a row, not 3"),
        (list, "each takes a function of a row, not the class list"),
        (lambda: None, "each calls lambda(row): it must take one argument"),
    ):
        with pytest.raises(UsageError) as error:
            whale.sinks.each(function)  # type: ignore[arg-type]  # that is the mistake
        assert str(error.value) == message
    with pytest.raises(UsageError, match=r"print\(format='x'\) must be a function of a row"):
        whale.sinks.print("x")  # type: ignore[arg-type]  # that is the mistake


def test_functions_instead_of_sinks_are_refused_with_a_remedy() -> None:
    def store(row: Any) -> None:
        """Do nothing."""

    rows = whale.Topology("t").source(whale.sources.iterable(ROWS), id="rows")
    for passed, fix in (
        (print, "not the function print: pass whale.sinks.print()"),
        (store, "not the function store: pass whale.sinks.each(store)"),
        (whale.sinks.collect, "call it, collect(…)"),
        (whale.sinks.print, "call it, print(…)"),
    ):
        with pytest.raises(TopologyError) as error:
            rows.sink(passed)  # type: ignore[arg-type]  # that is the mistake
        assert fix in str(error.value)


def test_the_function_that_ray_puts_in_the_place_of_print_is_called_print(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def safe_print(*values: object) -> None:
        """Do nothing."""

    monkeypatch.setattr("builtins.print", safe_print)
    rows = whale.Topology("t").source(whale.sources.iterable(ROWS), id="rows")
    with pytest.raises(TopologyError, match=r"function print: pass whale\.sinks\.print\(\)"):
        rows.sink(print)  # type: ignore[arg-type]  # that is the mistake


def test_descriptions() -> None:
    assert whale.sinks.print().describe() == "print"
    assert whale.sinks.each(whale.columns(run)).describe() == ("each batch to run")
