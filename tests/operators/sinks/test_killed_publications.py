"""A job is killed while its sinks publish, and resumed: each output is there once."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

import whale_ray as whale
from tests.operators.sinks.postgres_server import ask
from tests.runs import await_ends

pytestmark = pytest.mark.long

ROWS = 1000
SINKS = ("nothing", "log", "files", "lake", "table")

DRIVER = """
    import itertools, json, os, pathlib, signal, sys, threading
    import psutil
    import whale_ray as whale
    from whale_ray.control.sink_publisher import SinkPublisher

    folder, dsn, published, end = sys.argv[1:]
    published, drains = int(published), end == "drains"

    class Log(whale.sinks.Sink):
        # Adds rows to a file; knows what it has published by its token alone, as brokers do.

        delivery = "exactly once"

        def __init__(self, path):
            self.path = path

        def describe(self):
            return "log"

        def open(self, context, token):
            return LogWriter(context.instance)

        def recover(self, token, staged, *, bounded):
            pass

        def publish(self, token, staged):
            rows = [row for part in staged for row in json.loads(part.payload or b"[]")]
            done = pathlib.Path(self.path + "-done")
            if not done.exists() or token not in done.read_text().splitlines():
                with open(self.path, "a") as file:
                    file.writelines(f"{row}\\n" for row in rows)
                with open(done, "a") as file:
                    file.write(token + "\\n")
            return whale.sinks.SinkResult(rows=len(rows))

        publish_partial = publish

    class LogWriter(whale.sinks.SinkWriter):
        def __init__(self, instance):
            self.instance, self.rows = instance, []

        def write(self, batch):
            self.rows += batch["n"].tolist()

        def stage(self):
            payload, rows = json.dumps(self.rows).encode(), len(self.rows)
            return whale.sinks.Staged(self.instance, rows, payload=payload)

        def stage_epoch(self, epoch):
            staged = self.stage() if self.rows else None
            self.rows = []
            return staged

        def abort(self):
            self.rows = []

    call, calls = SinkPublisher._publish_through, []

    def die():
        print(*(one.pid for one in psutil.Process().children(recursive=True)), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

    def fatal(*arguments):
        if len(calls) == published:
            die()
        result = call(*arguments)
        calls.append(result)
        if len(calls) == published == 5:
            die()
        return result

    SinkPublisher._publish_through = fatal
    topology = whale.Topology("killed")

    def numbers():
        for n in itertools.count() if drains else range(1000):
            if drains and n % 100 == 0:
                threading.Event().wait(0.01)
            yield {"n": n}

    rows = topology.source(whale.sources.iterable(numbers), id="rows")
    nothing = whale.sinks.parquet(f"{folder}/nothing")
    rows.filter(whale.col("n") < 0).sink(nothing, id="nothing", parallelism=2)
    rows.sink(Log(f"{folder}/log"), id="log", parallelism=2)
    rows.sink(whale.sinks.parquet(f"{folder}/files"), id="files", parallelism=2)
    rows.sink(whale.sinks.delta(f"{folder}/lake"), id="lake", parallelism=2)
    rows.sink(whale.sinks.postgres(dsn, "t"), id="table", parallelism=2)
    job = whale.submit(topology, on="processes", workers=2, checkpoints=f"{folder}/store")
    while drains and not sum(one.rows_in for one in job.metrics().operators):
        threading.Event().wait(0.01)
    job.stop(timeout_s=100) if drains else job.wait(100)
"""


def found(folder: Path, dsn: str, files: str = "files") -> dict[str, list[int]]:
    """Return the rows that are visible in each output, in order."""
    log, parts, lake = folder / "log", folder / files, folder / "lake"
    rows: dict[str, list[int]] = {name: [] for name in SINKS}
    if log.exists():
        rows["log"] = [int(n) for n in log.read_text().split()]
    if parts.exists():
        rows["files"] = pq.read_table(parts)["n"].to_pylist()
    if DeltaTable.is_deltatable(str(lake)):
        rows["lake"] = DeltaTable(lake).to_pyarrow_table()["n"].to_pylist()
    if ask(dsn, "SELECT to_regclass('t') IS NOT NULL")[0][0]:
        rows["table"] = [row[0] for row in ask(dsn, "SELECT n FROM t")]
    return {name: sorted(numbers) for name, numbers in rows.items()}


def kill_behind(published: int, folder: Path, dsn: str, *, drains: bool) -> None:
    """Run the job until so many sinks have published."""
    script = folder / "driver.py"
    script.write_text(textwrap.dedent(DRIVER))
    arguments = [str(folder), dsn, str(published), "drains" if drains else "ends"]
    killed = subprocess.run(
        [sys.executable, str(script), *arguments],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert killed.returncode == -9, killed.stderr
    children = [int(pid) for pid in killed.stdout.split() if psutil.pid_exists(int(pid))]
    assert await_ends(map(psutil.Process, children), 60) == []


@pytest.mark.parametrize("published", range(len(SINKS) + 1))
def test_a_job_that_is_resumed_publishes_what_is_missing(
    published: int, tmp_path: Path, database: str, no_leaks: None
) -> None:
    kill_behind(published, tmp_path, database, drains=False)
    rows = list(range(ROWS))
    visible = {name: rows if turn < published else [] for turn, name in enumerate(SINKS)}
    assert found(tmp_path, database) == {**visible, "nothing": []}
    assert (tmp_path / "nothing").exists() == (published > 0)
    job = whale.resume(tmp_path / "store").wait(100)
    assert job.state == "finished"
    assert {name: job.results(name).rows for name in SINKS[1:]} == dict.fromkeys(SINKS[1:], ROWS)
    assert found(tmp_path, database) == {"nothing": [], **dict.fromkeys(SINKS[1:], rows)}
    assert pq.read_table(tmp_path / "nothing").num_rows == 0
    stages = ask(database, "SELECT tablename FROM pg_tables WHERE tablename ~ 'whale_stage'")
    assert stages == []
    assert not list(tmp_path.glob(".*whale*"))
    with pytest.raises(whale.errors.UsageError, match="has ended behind its checkpoint"):
        whale.resume(tmp_path / "store")


@pytest.mark.parametrize("published", [0, 3, 5])
def test_the_output_of_a_job_that_was_drained_stays_partial(
    published: int, tmp_path: Path, database: str, no_leaks: None
) -> None:
    kill_behind(published, tmp_path, database, drains=True)
    job = whale.resume(tmp_path / "store").wait(100)
    assert job.state == "drained"
    outputs = found(tmp_path, database, "files.partial")
    rows = outputs["log"]
    assert rows == list(range(len(rows)))
    assert rows
    assert outputs == {"nothing": [], **dict.fromkeys(SINKS[1:], rows)}
    partial = ["files.partial", "nothing.partial"]
    assert sorted(path.name for path in tmp_path.glob("[fn]*")) == partial
