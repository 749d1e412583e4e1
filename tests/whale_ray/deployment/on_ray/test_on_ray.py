"""Jobs as Ray actors, on a Ray that they join as a user's own; what survives which failure."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

import whale_ray as whale
from tests.runs import living, rest
from tests.transport.unix_transport import unix_transport
from whale_ray import state
from whale_ray.operators.sinks.base import Sink, SinkResult, SinkWriter, Staged
from whale_ray.transport.segment import SHM_DIRECTORY

pytestmark = pytest.mark.ray

END_TIMEOUT_S = 60


def actors_left(ray: Any) -> list[str]:
    """Return the actors that do not end; Ray takes a moment to bury one that was killed."""
    from ray._private.state import actors  # the public list asks the dashboard

    until = time.monotonic() + END_TIMEOUT_S
    while True:
        left = [one["ActorClassName"] for one in actors().values() if one["State"] != "DEAD"]
        if not left or time.monotonic() >= until:
            return left
        rest()


def rows_read(job: whale.Job) -> int:
    """Return how many rows the source "rows" has read; workers report one after the other."""
    return sum(one.rows_in for one in job.metrics().operators if one.operator_id == "rows")


class Count(whale.Process):
    def open(self, context: Any) -> None:
        self.counts: dict[Any, int] = {}

    def on_row(self, row: Any, out: Any) -> None:
        self.counts[row["k"]] = self.counts.get(row["k"], 0) + 1

    def close(self, out: Any) -> None:
        out.emit_rows([{"k": k, "n": n} for k, n in self.counts.items()])


ROWS = [{"k": i % 13, "v": i} for i in range(2000)]


class CountOfKey(whale.KeyedProcess):
    """The same with state by key, which a timer emits at the end of the input."""

    n = state.count()
    end = state.timer()

    def on_row(self, row: Any, out: Any) -> None:
        self.n.add(1)
        self.end.set(2**62)

    def on_timer(self, timer: Any, out: Any) -> None:
        out.emit_row(k=self.key.k, n=self.n.get())


def counting(
    process: Any = Count, sink: Any = None, rows: Any = ROWS, **options: Any
) -> whale.Topology:
    topology = whale.Topology("counting", **options)
    source = topology.source(whale.sources.iterable(rows), id="rows")
    source.filter(lambda row: row.v % 2 == 0, id="even").key_by("k").process(
        process, id="count", parallelism=4
    ).sink(sink or whale.sinks.collect(), id="out")
    return topology


EXPECTED = {k: sum(1 for i in range(0, 2000, 2) if i % 13 == k) for k in range(13)}


@pytest.mark.long
def test_a_job_joins_a_running_ray_and_leaves_it_as_it_was(cluster: Any) -> None:
    """It counts in objects of the user's and in declared state, and reads a union."""
    topology = counting()
    even = topology.source(whale.sources.iterable(ROWS), id="again").filter(whale.col("v") % 2 == 0)
    of_keys = even.key_by("k").process(CountOfKey, id="of-keys", parallelism=4)
    of_keys.sink(whale.sinks.collect(), id="by-key")
    streams = [
        topology.source(whale.sources.iterable([{"k": i % 13} for i in part]), id=f"rows-{n}")
        for n, part in enumerate((range(0, 1000, 2), range(1000, 1500, 2), range(1500, 2000, 2)))
    ]
    united = streams[0].union(*streams[1:]).key_by("k").process(Count, id="all", parallelism=4)
    united.sink(whale.sinks.collect(), id="of-union")
    before = cluster.cluster_resources()
    job = whale.submit(topology, workers=2).wait(120)
    for sink in ("out", "by-key", "of-union"):
        found = {row["k"]: row["n"] for row in job.results(sink).to_arrow().to_pylist()}
        assert found == EXPECTED, sink
    assert job.state == "finished"
    assert cluster.is_initialized()
    assert cluster.cluster_resources() == before
    assert "finished" in job._repr_html_()


@pytest.mark.long
def test_a_table_is_joined_by_actors(cluster: Any) -> None:
    topology = whale.Topology("named")
    rows = topology.source(whale.sources.iterable(ROWS), id="rows")
    names = [{"id": k, "name": f"name {k}"} for k in range(10)]
    table = whale.sources.iterable(names, schema={"id": "int64", "name": "string"})
    named = rows.join_table(table, on={"k": "id"}, how="left", parallelism=4)
    named.sink(whale.sinks.collect(), id="out")
    found = whale.submit(topology, workers=2).wait(120).results("out").to_arrow().to_pylist()
    assert sorted((row["v"], row["name"]) for row in found) == [
        (row["v"], f"name {row['k']}" if row["k"] < 10 else None) for row in ROWS
    ]


@pytest.mark.long
def test_a_users_transport_carries_rows_between_actors(cluster: Any) -> None:
    topology = counting(transport=unix_transport(message_bytes=256, queue_length=4))
    job = whale.submit(topology, workers=3).wait(120)
    assert {row["k"]: row["n"] for row in job.results("out").to_arrow().to_pylist()} == EXPECTED
    assert len(job.metrics().transports) == 4, "two senders, and a receiver for each"


class Suicidal(Count):
    def open(self, context: Any) -> None:
        super().open(context)
        self.attempt = context.attempt

    def on_row(self, row: Any, out: Any) -> None:
        super().on_row(row, out)
        if self.attempt == 0 and row["v"] == 1000:
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.long
def test_a_killed_actor_restarts_the_job(cluster: Any, tmp_path: Path) -> None:
    sink = whale.sinks.parquet(tmp_path / "out")
    job = whale.submit(counting(Suicidal, sink), workers=2).wait(120)
    found = {row["k"]: row["n"] for row in job.results("out").to_arrow().to_pylist()}
    assert found == EXPECTED
    assert job.outcome().restarts == 1
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


class KillsRelay(Suicidal):
    """Kills the relay of the second host; `marker` tells that it has."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def on_row(self, row: Any, out: Any) -> None:
        Count.on_row(self, row, out)
        if self.attempt == 0 and row["v"] == 1000:
            for relay in living("whale relay 1"):
                relay.kill()
                self.marker.touch()


@pytest.mark.long
def test_a_killed_relay_is_replaced_while_the_job_runs_on(cluster: Any, tmp_path: Path) -> None:
    sink, marker = whale.sinks.parquet(tmp_path / "out"), tmp_path / "killed"

    def rows() -> Iterator[dict[str, int] | None]:
        for row in ROWS:
            yield row
            while row["v"] == 1000 and not marker.exists():
                yield None  # what follows needs the new relay

    topology = counting(partial(KillsRelay, marker), sink, rows)
    job = whale.submit(topology, workers=2, settings={"runtime.hosts": 2})
    found = {row["k"]: row["n"] for row in job.results("out").to_arrow().to_pylist()}
    assert found == EXPECTED
    assert marker.exists()
    assert job.outcome().restarts == 0
    assert [relay.host for relay in job.metrics().relays] == ["host-0", "host-1"]
    assert sum(link.bytes_sent for relay in job.metrics().relays for link in relay.links) > 0


@pytest.mark.long
def test_named_segments_serve_actors_too_and_a_killed_one_leaves_none(
    cluster: Any, segments_alone: None, tmp_path: Path
) -> None:
    topology = counting(Suicidal, whale.sinks.parquet(tmp_path / "out"))
    job = whale.submit(topology, workers=2, settings={"transport.segment_kind": "named"}).wait(120)
    found = {row["k"]: row["n"] for row in job.results("out").to_arrow().to_pylist()}
    assert found == EXPECTED
    assert job.outcome().restarts == 1
    assert list(SHM_DIRECTORY.glob(f"whale-ray-{job.id}*")) == []


class KillsController(Sink):
    """Files whose first publication is the last thing that its process does."""

    def __init__(self, folder: Path) -> None:
        self.files = whale.sinks.parquet(folder / "out")
        self.killed = folder / "killed"

    def open(self, context: Any, token: str) -> SinkWriter:
        return self.files.open(context, token)

    def publish(self, token: str, staged: Sequence[Staged]) -> SinkResult:
        result = self.files.publish(token, staged)
        if not self.killed.exists():
            self.killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    def discard(self, token: str) -> None:
        self.files.discard(token)

    def describe(self) -> str:
        return "parquet"


@pytest.mark.long
def test_a_controller_that_dies_between_publishing_and_saying_so_is_succeeded(
    cluster: Any, tmp_path: Path
) -> None:
    job = whale.submit(counting(sink=KillsController(tmp_path)), workers=2).wait(120)
    found = {row["k"]: row["n"] for row in job.results("out").to_arrow().to_pylist()}
    assert found == EXPECTED
    assert (job.state, job.outcome().restarts) == ("finished", 0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["killed", "out"]


def paced(sink: Any) -> whale.Topology:
    topology = whale.Topology("paced")
    rows = whale.sources.poisson(
        1000.0, lambda rows, chance: {"k": chance.integers(0, 13, len(rows))}, limit=5000, seed=3
    )
    topology.source(rows, id="rows").key_by("k").process(Count, id="count", parallelism=2).sink(
        sink, id="out"
    )
    return topology


@pytest.mark.long
def test_a_killed_controller_resumes_while_the_data_runs_on(cluster: Any, tmp_path: Path) -> None:
    from ray._private.state import actors

    job = whale.submit(paced(whale.sinks.parquet(tmp_path / "out")), workers=2)
    while rows_read(job) < 500:
        assert job.state in ("starting", "running")
        with contextlib.suppress(TimeoutError):
            job.wait(0.05)
    (controller,) = [
        entry["Pid"]
        for entry in actors().values()
        if entry["ActorClassName"] == "ControllerActor" and entry["State"] == "ALIVE"
    ]
    os.kill(controller, signal.SIGKILL)
    outcome = job.wait(120).outcome()
    assert (outcome.state, outcome.restarts) == ("finished", 0)
    assert sum(job.results("out").to_arrow()["n"].to_pylist()) == 5000


@pytest.mark.long
def test_a_stop_of_all_processes_drains_the_job_once_and_keeps_the_earlier_output(
    cluster: Any, tmp_path: Path
) -> None:
    from ray._private.state import actors

    sink = whale.sinks.parquet(tmp_path / "out", overwrite=True)
    whale.submit(counting(Count, sink), workers=2).wait(120)
    job = whale.submit(paced(sink), workers=2)
    while rows_read(job) < 100:
        assert job.state in ("starting", "running")
        rest()
    for actor in actors().values():
        if actor["State"] == "ALIVE":
            os.kill(actor["Pid"], signal.SIGTERM)
    assert job.stop(timeout_s=120).state == "drained"
    assert job.outcome().restarts == 0
    assert job.results("out").path == str(tmp_path / "out.partial")
    assert sum(job.results("out").to_arrow()["n"].to_pylist()) >= 100
    earlier = pyarrow.parquet.read_table(tmp_path / "out").to_pylist()
    assert {row["k"]: row["n"] for row in earlier} == EXPECTED


def test_no_actor_remains(cluster: Any) -> None:
    assert actors_left(cluster) == []


@pytest.mark.long
def test_workers_that_cannot_be_placed_are_reported_with_the_remedy(cluster: Any) -> None:
    with pytest.raises(
        whale.errors.ResourceError, match=r"Ray cannot place .* use fewer --workers"
    ):
        whale.submit(counting(), workers=9, settings={"runtime.start_timeout_ms": 3000}).wait(60)


DETACHED = """
    import whale_ray as whale
    from whale_ray.testing import ListSource

    def numbers():
        i = 0
        while True:
            yield {"v": i}
            i += 1

    if __name__ == "__main__":
        topology = whale.Topology("endless")
        topology.source(whale.sources.iterable(numbers, bounded=True), id="n").filter(
            lambda row: row.v % 1000 == 0, id="few").sink(whale.sinks.parquet(OUT), id="out")
        print(whale.submit(topology, workers=1, detach=True, address="auto").id)
"""


@pytest.mark.long
def test_a_detached_job_outlives_its_driver_and_is_listed_and_stopped(
    cluster: Any, tmp_path: Path
) -> None:
    from whale_ray.cli.main import main

    script = tmp_path / "detached.py"
    script.write_text(textwrap.dedent(DETACHED).replace("OUT", repr(str(tmp_path / "out"))))
    address = cluster.get_runtime_context().gcs_address
    environment = {**os.environ, "RAY_ADDRESS": address}
    done = subprocess.run(
        [sys.executable, str(script)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    job_id = done.stdout.strip()
    assert job_id.startswith("endless-"), done.stderr
    command = [sys.executable, "-m", "whale_ray.cli.main"]
    listed = subprocess.run(
        [*command, "list"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert job_id in listed.stdout, listed.stderr
    assert main(["stop", "no-such-job"]) == 2
    stopped = subprocess.run(
        [*command, "stop", job_id],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert stopped.stdout == f"{job_id} has ended\n", stopped.stderr
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["out.partial"]
    assert actors_left(cluster) == []


@pytest.mark.long
def test_a_detached_job_whose_controller_is_killed_goes_on(cluster: Any, tmp_path: Path) -> None:
    from ray._private.state import actors

    from whale_ray.deployment.on_ray.ray_controller import controller_name
    from whale_ray.deployment.on_ray.ray_fleet import NAMESPACE
    from whale_ray.deployment.on_ray.ray_jobs import stop_job
    from whale_ray.deployment.on_ray.ray_journal import fetch_envelope

    sink = whale.sinks.parquet(tmp_path / "out")
    job = whale.submit(paced(sink), workers=1, detach=True, address="auto")
    while rows_read(job) < 500:
        assert job.state in ("starting", "running")
        rest()
    (pid,) = [
        entry["Pid"]
        for entry in actors().values()
        if entry["Name"] == controller_name(job.id) and entry["State"] == "ALIVE"
    ]
    os.kill(pid, signal.SIGKILL)
    controller = cluster.get_actor(controller_name(job.id), namespace=NAMESPACE)
    cluster.wait([controller.wait_until_gone.remote(60)], timeout=60)
    assert sum(pyarrow.parquet.read_table(tmp_path / "out")["n"].to_pylist()) == 5000
    with pytest.raises(whale.errors.JobError, match="has ended"):
        fetch_envelope(job.id)
    with pytest.raises(whale.errors.UsageError, match=r"has ended \(finished\)"):
        stop_job(job.id, "drain", "auto", 10)
    assert actors_left(cluster) == []
