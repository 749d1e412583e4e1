"""An application's messages about Parquet input that Spark cannot read, and about nanoseconds.

What needs Spark runs in a process of its own, with one session for all.
"""

from __future__ import annotations

import json
import subprocess
import sys
from argparse import Namespace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from whale_ray.applications.shared.command import kept_input_folders
from whale_ray.applications.shared.parquet_input import check_files
from whale_ray.cli.main import main
from whale_ray.configs.errors import EXIT_FAILURE, EXIT_USAGE, InputError

PAIRS = {
    "ride-hailing": ("positions.parquet", "requests.parquet"),
    "stock-exchange": ("orders.parquet", "trades.parquet"),
    "options-market": ("options_daily_x.parquet", "options_universe_x.parquet"),
}
GOOD = pa.table({"number": np.arange(100_000)})


def damage_end(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def damage_half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def text(path: Path) -> None:
    path.write_text("vehicle_id,event_time\n", encoding="utf-8")


def empty_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "_SUCCESS").touch()


def folder_with_a_cut_part(path: Path) -> None:
    path.unlink()
    path.mkdir()
    pq.write_table(GOOD, path / "part-0.parquet")
    (path / "day=1").mkdir()
    (path / "day=1" / "part-1.parquet").write_bytes(b"PAR1")


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize(
    "harm", [damage_end, damage_half, empty, text, empty_folder, folder_with_a_cut_part]
)
@pytest.mark.parametrize("application", PAIRS)
def test_damaged_input_is_one_line_before_anything_starts(
    application, harm, which, tmp_path, capsys
):
    for name in PAIRS[application]:
        pq.write_table(GOOD, tmp_path / name)
    damaged = tmp_path / PAIRS[application][which]
    harm(damaged)
    code = main(["run", application, "--data", str(tmp_path), "--output", str(tmp_path / "out")])
    (line,) = capsys.readouterr().err.splitlines()
    assert code == EXIT_USAGE
    assert str(damaged) in line
    assert line.endswith((": write it again", ": put Parquet files there"))


def test_files_that_spark_passes_over_are_not_looked_at(tmp_path):
    pq.write_table(GOOD, tmp_path / "part-0.parquet")
    for name in (".part-0.parquet.crc", "_SUCCESS", "_temporary"):
        (tmp_path / name).write_bytes(b"x")
    check_files({"rows": str(tmp_path), "more": None})
    (tmp_path / "notes.txt").write_bytes(b"x")  # Spark would read it
    with pytest.raises(InputError, match=r"rows: '.*notes.txt' is no whole Parquet file"):
        check_files({"rows": str(tmp_path)})


@pytest.mark.parametrize(
    ("application", "folder"), [("ride-hailing", "requests"), ("stock-exchange", "orders")]
)
def test_the_input_of_a_detached_job_replaces_nothing_of_the_users(
    application, folder, tmp_path, capsys
):
    for name in PAIRS[application]:
        pq.write_table(GOOD, tmp_path / name)
    mine = tmp_path / "out-input" / folder / "part-0.parquet"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    chosen = ["--data", str(tmp_path), "--output", str(tmp_path / "out"), "--on", "ray", "--detach"]
    assert main(["run", application, *chosen]) == EXIT_FAILURE
    (line,) = capsys.readouterr().err.splitlines()
    assert f"the output '{mine.parent}' is not replaced" in line
    assert mine.read_text() == "mine"


@pytest.mark.parametrize("application", ["ride-hailing", "stock-exchange"])
def test_a_detached_job_without_a_running_ray_is_refused_before_the_preparation(
    application, tmp_path, capsys
):
    for name in PAIRS[application]:
        pq.write_table(GOOD, tmp_path / name)
    chosen = ["--data", str(tmp_path), "--output", str(tmp_path / "out"), "--detach"]
    assert main(["run", application, *chosen, "--address", "local"]) == EXIT_USAGE
    assert capsys.readouterr().err == (
        "whale-ray: a detached job needs a Ray that outlives this process; start one with "
        "`ray start --head`\n"
    )


SCRIPT = """
import json, sys
from pathlib import Path
from whale_ray.applications.shared.command import save_as_files, spark_session
from whale_ray.applications.shared.phases import Phases
from whale_ray.applications.shared.preparing import open_parquet
from whale_ray.configs.errors import SparkFailedError
from whale_ray.configs.settings import Settings
from whale_ray.spark import spark_locally

folder, found = sys.argv[1], {}
with spark_session("test", Phases("test"), Settings()) as session:
    times = {"zoned": ("timestamp",), "local": ("timestamp_ntz",), "micros": ("timestamp",)}
    rows = open_parquet(session, "rows", f"{folder}/times", times)
    found["times"] = [
        list(row) for row in rows.selectExpr(
            "UNIX_MICROS(zoned)", "UNIX_MICROS(CAST(local AS TIMESTAMP))", "UNIX_MICROS(micros)",
            "day").collect()
    ]
    for _ in range(2):
        save_as_files(session.range(3), Path(folder) / "out-input" / "positions")
try:
    with spark_session("test", Phases("test"), Settings()) as session:
        open_parquet(session, "rows", f"{folder}/zeroed.parquet", {}).toPandas()
except SparkFailedError as error:
    found["failed"], found["cause"] = str(error), str(error.__cause__)
try:
    with spark_locally("test") as session:
        session.read.parquet(f"{folder}/nowhere")
except Exception as error:
    found["kind"], found["readable"] = type(error).__name__, str(error)
print(json.dumps(found))
"""


@pytest.mark.long
@pytest.mark.spark
def test_nanoseconds_are_read_and_errors_of_spark_are_reported_after_its_end(tmp_path):
    moments_ns = [1, 999, 1000, -1, -1000, -1001, 1_686_000_000_123_456_789, -(2**63) + 1, None]
    instants = pa.array(moments_ns, pa.int64())
    times = {
        "zoned": instants.cast(pa.timestamp("ns", tz="UTC")),
        "local": instants.cast(pa.timestamp("ns")),
        "micros": pa.array([datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=5)] * 9),
    }
    (tmp_path / "times" / "day=7").mkdir(parents=True)
    pq.write_table(pa.table(times), tmp_path / "times" / "day=7" / "part-0.parquet")
    pq.write_table(GOOD, tmp_path / "zeroed.parquet")
    data = bytearray((tmp_path / "zeroed.parquet").read_bytes())
    data[1000 : len(data) // 2] = bytes(len(data) // 2 - 1000)
    (tmp_path / "zeroed.parquet").write_bytes(data)

    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)],
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    floored = [None if ns is None else ns // 1000 for ns in moments_ns]
    assert found["times"] == [[us, us, 5, 7] for us in floored]
    assert found["failed"].startswith(f"Spark failed: {tmp_path}/zeroed.parquet: ")
    assert "\n" not in found["failed"]
    assert "SparkException" in found["cause"] and "Caused by: " in found["cause"]
    kept_input_folders(Namespace(output=str(tmp_path / "out")), "positions")
    assert pq.read_table(tmp_path / "out-input" / "positions").num_rows == 3
    assert found["kind"] == "AnalysisException"
    assert "Path does not exist" in found["readable"]
