"""`whale-ray bench streaming`: its rows, the cells that are kept, and the ways of whale-ray."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.whale_ray.lab.bench.streaming_rows import expected
from whale_ray.cli.main import main
from whale_ray.configs.errors import ResourceError, UsageError
from whale_ray.lab.bench.report import Aim, BenchRow
from whale_ray.lab.bench.streaming import first_result, handles, many_keys, suite
from whale_ray.lab.bench.streaming.answers import Answer, answer_of
from whale_ray.lab.bench.streaming.cells import found_by
from whale_ray.lab.bench.streaming.comparison import SystemComparison
from whale_ray.lab.bench.streaming.inputs import InputFiles
from whale_ray.lab.bench.streaming.kept_cells import KeptCells, digest_of_sources
from whale_ray.lab.bench.streaming.systems import SYSTEMS, System, system_named
from whale_ray.lab.bench.streaming.timing import Measured
from whale_ray.lab.bench.streaming.ways import WAYS
from whale_ray.lab.bench.streaming.workload import Workload
from whale_ray.lab.bench.streaming.workloads import (
    CODED,
    LONGER,
    MAPPED,
    MATRIX,
    WORKLOADS,
    workload_named,
)


def copy_compiled(folder: Path) -> None:
    """Copy whale-ray with its compiled functions: to compile all of them takes a minute."""
    package = Path(first_result.__file__).parents[3]
    shutil.copytree(package, folder / package.name, ignore=shutil.ignore_patterns("frontend"))


def test_the_copy_for_first_results_has_all_but_what_is_compiled(tmp_path: Path) -> None:
    first_result._copy_uncompiled(tmp_path)
    found = {path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()}
    copy_compiled(tmp_path / "compiled")
    whole = {path.relative_to(tmp_path / "compiled") for path in tmp_path.glob("compiled/**/*.*")}
    assert {path for path in whole - found if path.suffix not in {".nbi", ".nbc"}} == set()
    assert not {path for path in found if path.suffix in {".nbi", ".nbc"}}
    assert Path("whale_ray/transport/wire/codec.py") in found


CODED_WAY = "whale-ray, 1 worker, mapped Arrow, texts as codes"


def without_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    kept = (
        "whale-ray, 1 worker",
        "whale-ray, 1 worker, mapped Arrow",
        CODED_WAY,
        "DuckDB batch, 1 thread",
    )
    ours = tuple(one for one in SYSTEMS if one.name in kept)
    monkeypatch.setattr(suite, "SYSTEMS", ours)
    monkeypatch.setattr(suite, "QUICK_EVENTS", 60_000)
    monkeypatch.setattr(handles, "QUICK_ROWS", 1_000)
    monkeypatch.setattr(handles, "REPETITIONS", 1)
    monkeypatch.setattr(many_keys, "QUICK_KEYS", 1 << 10)
    monkeypatch.setattr(first_result, "QUICK_REPETITIONS", 1)
    monkeypatch.setattr(first_result, "_copy_uncompiled", copy_compiled)
    monkeypatch.setattr(first_result, "has_common_processor", lambda: False)  # it would compile
    monkeypatch.setenv("WHALE_RAY_PEERS", str(tmp_path))


def test_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    without_others(monkeypatch, tmp_path)
    monkeypatch.setattr("whale_ray.lab.bench.streaming.bandwidth._QUICK_BYTES", 1 << 20)
    monkeypatch.setattr("whale_ray.lab.bench.streaming.hosts.HOSTS", (2,))
    words = ["bench", "streaming", "--quick", "--plots", str(tmp_path), "--json"]
    assert main(words) == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    rows = report["rows"]
    rates = [row for row in rows if row["unit"] == "k rows/s"]
    cells = {(row["name"], row["parameters"]["skew"], row["parameters"]["system"]) for row in rates}
    everywhere = ("whale-ray, 1 worker", "DuckDB batch, 1 thread")
    assert len(cells) == len(rates)
    assert cells == {
        *((one.name, 0.0, system) for one in WORKLOADS for system in everywhere),
        *((name, 2.0, system) for name in MATRIX for system in everywhere),
        *((name, 0.0, f"{everywhere[0]}, mapped Arrow") for name in MAPPED),
        *((name, 2.0, f"{everywhere[0]}, mapped Arrow") for name in MATRIX),
        *((f"{name}, 4 x the events", 0.0, f"{everywhere[0]}, mapped Arrow") for name in LONGER),
        *((name, skew, CODED_WAY) for name in CODED for skew in (0.0, 2.0)),
        *((f"{name}, 4 x the events", 0.0, CODED_WAY) for name in CODED),
    }
    assert {row["parameters"]["answer"] for row in rates} == {"the same"}
    assert [row["unit"] for row in rows if row["name"] == "read bandwidth"] == ["GB/s"] * 2
    assert len(list(tmp_path.glob("streaming-*.png"))) == (
        len(WORKLOADS) + len(MATRIX) + len(LONGER)
    )
    assert all(row["value"] > 0 for row in rows if row["unit"] == "k rows/s")
    late = {
        row["parameters"]["arrival"]: row["also"]["late rows"]
        for row in rows
        if "arrival" in row["parameters"]
    }
    assert late["in order"] == late["out of order within the bound"] == 0
    assert late["out of order, the late ones dropped"] > 0
    crossed = [row["value"] for row in rows if row["unit"] == "bytes between hosts/row"]
    assert 0 < crossed[1] < crossed[0] / 2  # by late merge, and partitioned


def test_absent_systems_are_named_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("WHALE_RAY_PEERS", str(tmp_path))
    monkeypatch.setattr("whale_ray.lab.bench.peers.base.find_spec", lambda name: None)
    notes = suite._absent()
    assert "Bytewax, 1 worker: absent, not installed (make peers)" in notes
    assert "Polars batch, 2 threads: absent, not installed (make peers)" in notes
    assert "Flink SQL, 2 workers: absent, not installed (make peers)" in notes
    assert "Pathway, 2 threads: absent, not installed (make peers)" in notes


def test_a_run_goes_on_with_the_cells_that_are_missing(
    few: InputFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, list[str]]] = []
    fails = {"second"}

    def measure_one(system: System, names: list[str], *_: object) -> dict[str, Measured]:
        asked.append((system.name, list(names)))
        if system.name in fails:
            raise ResourceError("it was interrupted")
        return {name: Measured(1.0, 0.5, None, Answer(1, len(name))) for name in names}

    monkeypatch.setattr("whale_ray.lab.bench.streaming.cells.measured", measure_one)
    path, conditions = tmp_path / "kept", {"events": 5}
    systems = [System(name, lambda *_: None) for name in ("first", "second")]
    both = [workload_named(name) for name in MATRIX]

    def run(workloads: list[Workload], skew: float = 0.0) -> Any:
        kept = KeptCells(path, conditions)
        return found_by(SystemComparison(workloads, lambda: few, systems, skew), 1, kept, [])

    run(both[:1])
    fails.clear()
    asked.clear()
    with path.open("a") as file:
        file.write('{"cell": {"system": "fi')  # an interruption cut this line off
    found = run(both)
    assert asked == [("first", [MATRIX[1]]), ("second", list(MATRIX))]
    asked.clear()
    assert run(both) == found
    assert asked == []
    run(both[:1], skew=1.0)
    assert asked == [("first", [MATRIX[0]]), ("second", [MATRIX[0]])]


def test_what_other_sources_have_measured_is_not_gone_on_with(tmp_path: Path) -> None:
    program = tmp_path / "sources" / "inner" / "program.py"
    program.parent.mkdir(parents=True)
    program.write_text("a = 1\n")
    before = {"sources": digest_of_sources(tmp_path / "sources")}
    KeptCells(tmp_path / "kept", before)
    (program.parent / "notes.txt").write_text("no program")
    assert {"sources": digest_of_sources(tmp_path / "sources")} == before
    program.write_text("a = 2\n")
    after = {"sources": digest_of_sources(tmp_path / "sources")}
    with pytest.raises(UsageError, match=r"measured with other sources: name another file$"):
        KeptCells(tmp_path / "kept", after)


def test_a_part_without_cells_is_kept_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = BenchRow("calls", {"keys": 3}, 2.0, "us", aim=Aim("value", "at most", 3), also={"x": 1})
    other = BenchRow("bytes", {}, 1.0, "GB/s")
    measured: list[str] = []

    def handles_of(_: bool) -> list[BenchRow]:
        measured.append("handles")
        return [row]

    def hosts(_: InputFiles, notes: list[str]) -> list[BenchRow]:
        measured.append("hosts")
        notes.append("another answer")
        return [other]

    monkeypatch.setattr(suite, "write_inputs", lambda *_: None)
    monkeypatch.setattr(suite, "_map", lambda *_: None)
    monkeypatch.setattr(suite, "handle_rows", handles_of)
    monkeypatch.setattr(suite, "host_rows", hosts)
    path = tmp_path / "kept"
    for part, rows in (("hosts", (other,)), ("handles", (row,)), ("hosts", (other,))):
        report = suite.run(quick=True, only=part, resume=path)
        assert report.rows == rows
        assert ("another answer" in report.notes) == (part == "hosts")
    assert suite.run(quick=True, only="handles", resume=path).rows == (row,)
    assert measured == ["hosts", "handles"]


def test_every_part_is_of_workloads_or_kept_as_a_whole(tmp_path: Path) -> None:
    run = suite._StreamingRun(tmp_path, 1, 1, True, 1, KeptCells(None, {}), [])
    alone = suite._alone(run, lambda: InputFiles(tmp_path, tmp_path, {}))
    assert {*alone, "skew", "mapped", *(one.part for one in WORKLOADS)} == set(suite.PARTS)


def test_cells_of_another_run_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    KeptCells(path, {"events": 5, "cores": 2})
    with pytest.raises(UsageError, match="measured with other events: name another file"):
        KeptCells(path, {"events": 6, "cores": 2})
    path.write_text("a,b\n1,2\n")
    with pytest.raises(UsageError, match="not written by bench streaming"):
        KeptCells(path, {"events": 5})
    assert path.read_text() == "a,b\n1,2\n"
    with pytest.raises(ResourceError, match="name a file that can be written"):
        KeptCells(tmp_path, {"events": 5})


def test_every_way_has_one_value_of_each_dimension() -> None:
    assert len({way.name for way in WAYS}) == len(WAYS)
    everything = tuple(one.name for one in WORKLOADS)
    assert [way.name for way in WAYS if way.workloads == everything] == [
        "whale-ray, 1 worker",
        "whale-ray, 2 workers",
    ]
    assert [way.name for way in WAYS if set(way.workloads) == set(MAPPED)] == [
        "whale-ray, 1 worker, mapped Arrow",
        "whale-ray, 2 workers, mapped Arrow",
    ]
    for way in WAYS:
        assert ("runtime.aggregation" in way.settings) == way.needs_aggregates
        assert way.needs_aggregates == ("partitioned" in way.name)
        interpreted = way.settings["runtime.pipelines"] == "interpreted"
        assert interpreted == ("interpreted" in way.name)
        joins = [workload_named(name).joins for name in system_named(way.name).workloads]
        assert not (way.needs_aggregates and any(joins))


def test_the_part_of_mapped_files_reads_as_many_times_the_events(tmp_path: Path) -> None:
    """Its files have all that its workloads read: answers are those of DuckDB on as many rows."""
    run = suite._StreamingRun(tmp_path, 30_000, 1, True, 1, KeptCells(None, {}), [])
    (made,) = suite._comparisons(run, ("mapped",), lambda: pytest.fail("the shorter input"))
    assert made.systems
    assert all(system.files != "parquet" for system in made.systems)
    assert {"Flink DataStream, 2 workers, mapped columns", made.systems[0].name} <= {
        system.name for system in made.systems
    }
    assert made.inputs().rows["events"] == 30_000 * suite.LENGTH
    assert [one.name for one in made.workloads] == list(LONGER)
    ours = next(system for system in made.systems if not system.missing())
    for workload in made.workloads:
        told = expected(workload.name, made.inputs().folder)
        answer = ours.runner(workload.name, made.inputs().folder)().answer
        assert answer == answer_of(pa.Table.from_pylist(told), workload.total)
    shorter = SystemComparison(made.workloads, made.inputs, made.systems)
    assert made.cell("system", "workload") != shorter.cell("system", "workload")
