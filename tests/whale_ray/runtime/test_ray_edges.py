"""What a job shows, asks for and says on a Ray with few resources; one Ray for the whole module."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import whale_ray as whale

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    import ray

    ray.init(
        num_cpus=4,
        num_gpus=2,
        resources={"scanner": 2},
        include_dashboard=False,
        logging_level="ERROR",
        log_to_driver=False,
    )
    yield ray
    ray.shutdown()


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


def test_a_failure_names_the_logs_and_comes_after_what_was_printed(
    cluster: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    job = whale.submit(talking(100), workers=1)
    with pytest.raises(whale.errors.UserFunctionError, match="no such taxi") as caught:
        job.wait(60)
    printed = capsys.readouterr()
    assert printed.out.splitlines() == [f"(talk#0) row {v}" for v in range(41)]
    assert printed.err == "(talk#0) before the fall\n"
    assert caught.value.__notes__ == [job.logs]


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


def await_end(ray: Any, job: whale.Job) -> None:
    """Wait until a detached job has ended."""
    from whale_ray.runtime.ray_controller import controller_name
    from whale_ray.runtime.ray_fleet import NAMESPACE

    try:
        controller = ray.get_actor(controller_name(job.id), namespace=NAMESPACE)
    except ValueError:
        return  # it has ended
    ray.wait([controller.wait_for_end.options(max_task_retries=0).remote()], timeout=60)
