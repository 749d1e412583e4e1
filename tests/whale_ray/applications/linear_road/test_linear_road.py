"""Linear Road against plain Python: generated reports, and those of the benchmark's generator."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import whale_ray as whale
from tests.whale_ray.applications.linear_road.road_reference import notifications
from whale_ray.applications.linear_road.generator import generate, tables
from whale_ray.applications.linear_road.schemas import REPORTS
from whale_ray.applications.linear_road.settings import LinearRoadSettings
from whale_ray.applications.linear_road.topology import build
from whale_ray.cli.main import main

COLUMNS = ["time_s", "vid", "xway", "dir", "seg", "lav_mph", "cars", "toll", "accident_seg"]
SETTINGS = LinearRoadSettings(expressways=1, vehicles=2_400, minutes=7, accidents=40, seed=3)
TOLL, ACCIDENT_SEG = COLUMNS.index("toll"), COLUMNS.index("accident_seg")


@cache
def reports() -> pa.Table:
    return pa.concat_tables(tables(SETTINGS))


def told(found: pa.Table) -> list[tuple]:
    assert found.column_names == COLUMNS
    return sorted(tuple(row.values()) for row in found.to_pylist())


def run(rows: pa.Table, parallelism: int = 1) -> list[tuple]:
    topology = build(whale.sources.arrow(rows), whale.sinks.collect(), parallelism=parallelism)
    return told(whale.run(topology).results("out").to_arrow())


@pytest.mark.parametrize("parallelism", [1, 3])
def test_notifications_are_those_of_the_definitions(parallelism: int) -> None:
    expected = sorted(notifications(reports().to_pylist()))
    assert run(reports(), parallelism) == expected
    assert sum(row[TOLL] > 0 for row in expected) > 100
    assert sum(row[ACCIDENT_SEG] is not None for row in expected) > 100


def test_notifications_of_the_benchmarks_own_reports(data_dir: Path) -> None:
    rows = pq.read_table(data_dir / "linear_road_sample.parquet").sort_by("time_s")
    found = run(rows)
    assert found == sorted(notifications(rows.to_pylist()))
    assert 100 < len(found) < rows.num_rows


def report(time_s: int, vid: int, pos_ft: int, *, direction: int = 0, lane: int = 1) -> tuple:
    return (0, time_s, vid, 30, 0, lane, direction, pos_ft // 5_280, pos_ft)


@pytest.mark.parametrize(("direction", "step"), [(0, -1), (1, 1)])
def test_an_accident_is_told_from_the_next_minute_on_until_it_is_cleared(
    direction: int, step: int
) -> None:
    """Two vehicles stop in segment 50 in minute 1, and one of them goes on in minute 4."""
    place_ft = 50 * 5_280 + 7
    rows = [report(30 * n, 1, place_ft, direction=direction) for n in range(9)]
    rows += [report(30 * n + 5, 2, place_ft, direction=direction) for n in range(8)]
    rows.append(report(30 * 8 + 5, 2, place_ft + 100, direction=direction))
    passing = {
        vid: (minute, distance)
        for vid, (minute, distance) in enumerate(
            [(minute, distance) for minute in range(1, 7) for distance in (-1, 0, 4, 5)], 10
        )
    }
    for vid, (minute, distance) in passing.items():
        there_ft = (50 + step * distance) * 5_280
        rows.append(report(60 * minute + 50, vid, there_ft, direction=direction))
    rows.sort(key=lambda row: row[1])
    table = pa.Table.from_pylist(
        [dict(zip(REPORTS.names, row, strict=True)) for row in rows], schema=REPORTS
    )
    warned = {row[1] for row in run(table) if row[ACCIDENT_SEG] == 50}
    assert warned == {
        vid
        for vid, (minute, distance) in passing.items()
        if minute in (2, 3, 4) and distance in (0, 4)
    }


def test_a_toll_is_due_above_50_cars_below_40_miles_per_hour() -> None:
    def toll(cars: int, speed_mph: int) -> set[int]:
        rows = [(0, 10, vid, speed_mph, 0, 1, 0, 20, 20 * 5_280) for vid in range(cars)]
        rows.append((0, 70, 10_000, 30, 0, 1, 0, 20, 20 * 5_280))
        rows.append((2, 80, 10_000, 30, 0, 1, 0, 21, 20 * 5_280))
        table = pa.Table.from_pylist(
            [dict(zip(REPORTS.names, row, strict=True)) for row in rows], schema=REPORTS
        )
        return {row[TOLL] for row in run(table) if row[1] == 10_000}

    assert toll(50, 39) == {0}
    assert toll(53, 39) == {18}
    assert toll(53, 40) == {0}


def test_vehicles_report_each_30_s_and_keep_to_their_segments() -> None:
    rows = reports()
    times, segments = rows["time_s"].to_numpy(), rows["seg"].to_numpy()
    assert np.all(np.diff(times) >= 0)
    assert np.all(segments == rows["pos_ft"].to_numpy() // 5_280)
    assert segments.min() >= 0 and segments.max() <= 99
    assert set(rows["lane"].unique().to_pylist()) == {0, 1, 2, 3, 4}
    by_vehicle = rows.group_by("vid").aggregate([("time_s", "list"), ("dir", "count_distinct")])
    for times_s in by_vehicle["time_s_list"].to_pylist():
        assert set(np.diff(sorted(times_s))) <= {30}
    assert set(by_vehicle["dir_count_distinct"].to_pylist()) == {1}


def test_the_command_takes_generated_reports_and_a_users_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    few = LinearRoadSettings(vehicles=300, minutes=6, accidents=5)
    rows = pq.read_table(generate("given", few))
    expected = sorted(notifications(rows.to_pylist()))
    for source in ("--vehicles 300 --minutes 6 --accidents 5", "--data given"):
        words = ["run", "linear-road", "--on", "inline", "--json"]
        assert main([*words, *source.split()]) == 0
        said = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert (said["rows_in"], said["rows_out"]) == ({"reports": 3_600}, len(expected))
        assert told(pq.read_table("out/linear-road")) == expected
