"""Logs, resources and messages of a job on a Ray with few resources."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import whale_ray as whale
from tests.runs import rest
from whale_ray.cli.main import main
from whale_ray.control.job_states import ALIVE
from whale_ray.deployment.on_ray import ray_jobs
from whale_ray.deployment.on_ray.ray_controller import controller_name
from whale_ray.deployment.on_ray.ray_fleet import NAMESPACE
from whale_ray.deployment.on_ray.ray_jobs import RunningJob, find_job, stop_job

pytestmark = [pytest.mark.ray, pytest.mark.long]


class Talks(whale.Process):
    def on_row(self, row: Any, out: Any) -> None:
        sys.stdout.write(f"row {row.v}\n")
        if row.v == 40:
            sys.stderr.write("before the fall\n")
            raise LookupError("no such taxi")

    def close(self, out: Any) -> None:
        sys.stdout.write("bye\n")


def talking(rows: int) -> whale.Topology:
    topology = whale.Topology("talking")
    source = topology.source(whale.sources.iterable([{"v": v} for v in range(rows)]), id="rows")
    stream = source.global_().process(Talks, id="talk", parallelism=1)
    stream.sink(whale.sinks.collect(), id="out")
    return topology


def logged(job: whale.Job) -> str:
    """Return what stands in the logs that a job names."""
    pattern = Path(job.logs.partition(" is in ")[2].removesuffix(" of each node"))
    return "".join(path.read_text() for path in pattern.parent.glob(pattern.name))


def test_prints_are_forwarded_and_kept(cluster: Any, capsys: pytest.CaptureFixture[str]) -> None:
    job = whale.submit(talking(3), workers=1).wait(60)
    lines = [f"(talk#0) row {v}" for v in range(3)] + ["(talk#0) bye"]
    assert capsys.readouterr().out.splitlines() == lines
    assert "\n".join(lines) in logged(job)


def test_a_failure_keeps_its_traceback_names_the_logs_and_comes_after_what_was_printed(
    cluster: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    job = whale.submit(talking(100), workers=1)
    with pytest.raises(whale.errors.UserFunctionError, match="no such taxi") as caught:
        job.wait(60)
    printed = capsys.readouterr()
    assert printed.out.splitlines() == [f"(talk#0) row {v}" for v in range(41)]
    assert printed.err == "(talk#0) before the fall\n"
    assert caught.value.__notes__ == [job.logs]
    lines = str(caught.value).splitlines()
    assert "on_row" in lines[1]
    assert lines[-2:] == [
        "LookupError: no such taxi",
        "in operator 'talk', instance 0; input: {v=40}",
    ]


@pytest.mark.long
def test_rows_that_are_not_printed_are_counted_and_in_the_logs_that_are_named(
    cluster: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    topology = whale.Topology("printing")
    rows = topology.source(whale.sources.iterable([{"v": v} for v in range(500)]), id="rows")
    rows.sink(whale.sinks.print(lambda row: f"row {row.v}"), id="show")
    job = whale.submit(topology, workers=1, settings={"runtime.output_lines_per_s": 10}).wait(60)
    printed = capsys.readouterr()
    shown, told = printed.out.splitlines(), printed.err.splitlines()
    assert shown[:100] == [f"(show#0) row {v}" for v in range(100)]
    counts = [int(line.split()[2]) for line in told if " more, in the logs of Ray alone" in line]
    assert len(shown) + sum(counts) == 500
    assert [line for line in told if line == f"(output) {job.logs}"] == told[1:2]
    assert logged(job).count("(show#0) row ") == 500


@pytest.mark.long
def test_a_detached_job_prints_into_the_logs_that_it_names(
    cluster: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    topology = whale.Topology("detached")
    source = topology.source(whale.sources.iterable([{"v": 7700}, {"v": 7701}]), id="rows")
    stream = source.global_().process(Talks, id="talk", parallelism=1)
    stream.sink(whale.sinks.parquet(tmp_path / "out"), id="out")
    job = whale.submit(topology, workers=1, detach=True, address="auto")
    await_end(cluster, job)
    assert capsys.readouterr().out == ""
    assert "(talk#0) row 7700\n(talk#0) row 7701\n" in logged(job)


class Unopened(Talks):
    def open(self, context: Any) -> None:
        raise LookupError("no such table")


def test_a_detached_job_that_fails_as_it_starts_raises_its_error(
    cluster: Any, tmp_path: Path
) -> None:
    topology = whale.Topology("unopened")
    source = topology.source(whale.sources.iterable([{"v": 1}]), id="rows")
    stream = source.global_().process(Unopened, id="talk", parallelism=1)
    stream.sink(whale.sinks.parquet(tmp_path / "out"), id="out")
    with pytest.raises(whale.errors.UserFunctionError, match="no such table") as failed:
        whale.submit(topology, workers=1, detach=True, address="auto")
    assert failed.value.operator_id == "talk"
    assert 'raise LookupError("no such table")' in failed.value.user_traceback
    while [one for one in actor_table(cluster) if one.name.startswith("whale-ray:")]:
        rest()  # Ray takes a moment to end them


class Scans(whale.Process):
    """Tells which GPUs its worker was given, and one of its variables."""

    def close(self, out: Any) -> None:
        import ray

        out.emit_row(gpus=",".join(map(str, ray.get_gpu_ids())), coast=os.environ.get("COAST", ""))

    def on_row(self, row: Any, out: Any) -> None:
        pass


def scanning(name: str, parallelism: int = 2, source: Any = None, **asked: Any) -> whale.Topology:
    topology = whale.Topology(name)
    rows = topology.source(source or whale.sources.iterable([{"v": 1}]), id="rows")
    scans = rows.broadcast().process(Scans, id="scan", parallelism=parallelism, **asked)
    scans.sink(whale.sinks.collect(), id="out")
    return topology


def endless() -> Any:
    """Return a source of one row that does not end."""

    def numbers() -> Iterator[dict[str, int] | None]:
        yield {"v": 1}
        while True:
            yield None

    return whale.sources.iterable(numbers)


def actor_table(ray: Any) -> list[Any]:
    """Return Ray's own entries of the actors that live."""
    from ray.core.generated import gcs_pb2

    accessor = ray._private.state.state._connect_and_get_accessor()
    table = accessor.get_actor_table(None, None)
    found = [gcs_pb2.ActorTableData.FromString(entry) for entry in table]
    return [entry for entry in found if entry.state == gcs_pb2.ActorTableData.ALIVE]


def await_state(job: whale.Job, state: str) -> None:
    while job.state != state:
        assert job.state in ALIVE
        with suppress(TimeoutError):
            job.wait(0.05)


@pytest.mark.long
def test_operators_reserve_what_they_ask_for_and_bear_their_names(cluster: Any) -> None:
    asked = {"num_gpus": 1, "num_cpus": 0.5, "resources": {"scanner": 0.5}}
    topology = scanning("lasting", source=endless(), **asked)
    print_of = str(topology.explain(2, on="ray"))
    assert "0.5 CPU, 1 GPU, 0.5 scanner" in print_of
    assert "workers 0–1  1 CPU, 2 GPU, 1 scanner  4 CPU, 2 GPU, 2 scanner" in print_of
    job = whale.submit(topology, workers=2)
    try:
        await_state(job, "running")
        free = cluster._private.state.available_resources_per_node()
        (node,) = free.values()
        assert (node.get("CPU"), node.get("GPU", 0.0), node["scanner"]) == (3.0, 0.0, 1.0)
        entries = {entry.name: entry.repr_name for entry in actor_table(cluster)}
        assert entries[f"whale-ray:{job.id}:worker 0 (rows, scan, out)"] == (
            "worker 0 (rows, scan, out)"
        )
        assert f"whale-ray:{job.id}:worker 1 (scan, out)" in entries
        assert_refused_and_queued(job)
        of_job = f'{{.*job_id="{job.id}",.*'
        await_metric(cluster, f'ray_whale_ray_operator_rows_in_total{of_job}operator="rows"')
        await_metric(cluster, f'ray_whale_ray_sink_latency_seconds_bucket{of_job}le="0.025"')
    finally:
        job.stop(drain=False)


def assert_refused_and_queued(holder: whale.Job) -> None:
    """Submit jobs while the first one holds both GPUs."""
    with pytest.raises(whale.errors.ResourceError) as refused:
        whale.submit(scanning("second", 1, num_gpus=1), workers=1)
    told = f"1 GPU needed, 0 of 2 free; held by job {holder.id} (2 GPU); use fewer --workers"
    assert told in str(refused.value)
    queued = whale.submit(scanning("third", 1, num_gpus=1), workers=1, queue=True)
    await_state(queued, "queued")
    queued.stop()
    assert queued.state == "cancelled"


def await_metric(ray: Any, pattern: str) -> None:
    """Ask Ray's agent, as Prometheus would, until the metric is there."""
    (node,) = (node for node in ray.nodes() if node["Alive"])
    url = f"http://127.0.0.1:{node['MetricsExportPort']}/metrics"
    until = time.monotonic() + 60
    while time.monotonic() < until:
        with urllib.request.urlopen(url, timeout=60) as answer:
            if re.search(pattern, answer.read().decode()):
                return
    raise AssertionError(pattern)


@pytest.mark.long
def test_a_queued_job_runs_once_there_is_room(
    cluster: Any, caplog: pytest.LogCaptureFixture
) -> None:
    first = whale.submit(scanning("first", source=endless(), num_gpus=1), workers=2)
    second = whale.submit(scanning("second", 1, num_gpus=2), workers=1, queue=True)
    first.stop(drain=False)
    assert second.results("out").preview() == [{"gpus": "0,1", "coast": ""}]
    assert f"job '{second.id}' waits for room on Ray: 2 GPU needed, 0 of 2 free; held by job " in (
        caplog.text
    )


def test_a_detached_job_that_never_got_room_leaves_nothing(cluster: Any, tmp_path: Path) -> None:
    from ray.experimental.internal_kv import _internal_kv_list
    from ray.util.placement_group import placement_group, remove_placement_group

    everything = placement_group([{"CPU": 4}])
    assert everything.wait(60)
    try:
        topology = whale.Topology("unplaced")
        source = topology.source(whale.sources.iterable([{"v": 1}]), id="rows")
        source.sink(whale.sinks.parquet(tmp_path / "out"), id="out")
        job = whale.submit(topology, workers=2, detach=True, address="auto", queue=True)
        while job.state != "queued":
            rest()  # asking takes a moment
        stop_job(job.id, "drain", None, 60)
        named = cluster.util.list_named_actors(all_namespaces=True)
        assert not [entry for entry in named if job.id in entry["name"]]
        assert not _internal_kv_list(f"envelope:{job.id}", namespace="whale-ray")
    finally:
        remove_placement_group(everything)


def test_what_the_cluster_lacks_is_refused_at_once(cluster: Any) -> None:
    with pytest.raises(whale.errors.ResourceError) as refused:
        whale.submit(scanning("greedy", 3, resources={"scanner": 1}), workers=1)
    assert str(refused.value) == (
        "operator 'scan' asks Ray for 1 scanner for each of 3 instances, and the cluster has that "
        "for 2: lower its parallelism, ask for less, or start Ray with more"
    )
    with pytest.raises(whale.errors.ResourceError, match="they need 5 CPU, and Ray has 4 CPU in"):
        whale.submit(scanning("crowded"), workers=5)
    assert not [entry for entry in actor_table(cluster) if entry.name.startswith("whale-ray:")]


@pytest.mark.long
def test_a_runtime_env_reaches_the_functions(cluster: Any) -> None:
    topology = scanning("coastal", 1)
    job = whale.submit(topology, workers=1, runtime_env={"env_vars": {"COAST": "west"}})
    assert job.results("out").preview() == [{"gpus": "", "coast": "west"}]


@pytest.mark.long
def test_a_job_is_stopped_by_its_name(cluster: Any, capsys: pytest.CaptureFixture[str]) -> None:
    topology = scanning("named", 1, source=endless())
    job = whale.submit(topology, workers=1)
    await_state(job, "running")
    assert main(["stop", "named", "--now"]) == 0
    assert capsys.readouterr().out == f"{job.id} has ended\n"
    assert ray_jobs.list_jobs(None) == []  # at once: nothing of it is there any more
    assert job.wait(60).state == "cancelled"  # its driver learns of it a moment later
    assert main(["stop", "named"]) == 2
    assert capsys.readouterr().err == f"whale-ray: job '{job.id}' has ended (cancelled)\n"


@pytest.mark.long
@pytest.mark.parametrize("comes_back", [False, True])
def test_a_controller_that_dies_while_its_job_is_stopped(
    comes_back: bool, cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dead for good, the job has ended; one that Ray restarts is asked again."""
    job = whale.submit(scanning("dying", 1, source=endless()), workers=1)
    await_state(job, "running")
    found = []
    look = ray_jobs.controller_of

    def found_just_before_it_dies(job_id: str) -> Any:
        controller = look(job_id)
        if not found:
            cluster.kill(controller, no_restart=not comes_back)
        found.append(controller)
        return controller

    monkeypatch.setattr(ray_jobs, "controller_of", found_just_before_it_dies)
    monkeypatch.setattr(ray_jobs, "list_jobs", lambda _: [RunningJob(job.id, "dying", "running")])
    assert stop_job("dying", "now", None, 60) == job.id
    assert found[0] is not None and found[-1] is None
    if comes_back:
        assert job.wait(60).state == "cancelled"
    else:
        with pytest.raises(whale.errors.WorkerDiedError, match="the job's controller is gone"):
            job.wait(60)


def test_a_job_that_ends_while_it_is_asked_for_is_no_error(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = {"name": controller_name("ended-1"), "namespace": NAMESPACE}
    monkeypatch.setattr(cluster.util, "list_named_actors", lambda all_namespaces: [ended])
    assert ray_jobs.list_jobs(None) == []
    listed = [RunningJob("ended-1", "ended", "finishing")]
    monkeypatch.setattr(ray_jobs, "list_jobs", lambda _: listed)
    assert ray_jobs.stop_job("ended", "drain", None, 1) == "ended-1"


def test_a_name_that_several_jobs_bear_is_not_enough() -> None:
    running = [RunningJob("a-1", "a", "running"), RunningJob("a-2", "a", "running")]
    assert find_job("a-2", running) is running[1]
    with pytest.raises(whale.errors.UsageError) as refused:
        find_job("a", running)
    assert str(refused.value) == "several jobs are named 'a'; pass an id: a-1, a-2"


def test_a_job_that_does_not_answer_is_found_by_its_id() -> None:
    running = [RunningJob("a-1", ray_jobs.UNKNOWN_NAME, "does not answer")]
    assert find_job("a-1", running) is running[0]
    with pytest.raises(whale.errors.UsageError) as refused:
        find_job("a", running)
    assert str(refused.value) == (
        "there is no job 'a'; running: a-1; unless it is one that does not answer: then pass its id"
        " (a-1)"
    )


def await_end(ray: Any, job: whale.Job) -> None:
    """Wait until a detached job has ended."""
    try:
        controller = ray.get_actor(controller_name(job.id), namespace=NAMESPACE)
    except ValueError:
        return  # it has ended
    ray.wait([controller.wait_until_gone.options(max_task_retries=0).remote(60)], timeout=60)


DASHBOARD = """
import json, urllib.request
from pathlib import Path
import whale_ray as whale

def numbers():
    while True:
        yield {"v": 1}

for bounded in (True, False):
    source = whale.sources.iterable(numbers if not bounded else [{"v": 1}], bounded=bounded)
    topology = whale.Topology("lasting")
    topology.source(source, id="rows").sink(whale.sinks.parquet(FOLDER + str(bounded)), id="out")
    job = whale.submit(
        topology, address="local", workers=1, settings={"records.folder": FOLDER}
    )
    answer = 0
    if job.dashboard_url:
        with urllib.request.urlopen(job.dashboard_url, timeout=60) as page:
            answer = page.status
    job.stop(drain=False)
    described = json.loads(Path(FOLDER, job.id, "job.json").read_text())
    print(json.dumps([bounded, answer, described["ray_dashboard_url"] == job.dashboard_url]))
"""


@pytest.mark.long
def test_a_ray_of_our_own_has_a_dashboard_for_a_job_that_lasts(tmp_path: Path) -> None:
    script = DASHBOARD.replace("FOLDER", repr(str(tmp_path)))
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=280, check=False
    )
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert "SIGTERM handler" not in done.stderr, "another Ray was started at the end"
    assert told == [[True, 0, True], [False, 200, True]], done.stderr
