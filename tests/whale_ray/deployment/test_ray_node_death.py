"""A Ray of two unequal nodes, one of which dies under a job."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.ray, pytest.mark.long]

PATIENCE_S = 150

DRIVER = """
import threading

import ray
from ray.cluster_utils import Cluster

import whale_ray as whale


def slow(row):
    threading.Event().wait(0.01)
    return True


def main():
    cluster = Cluster(True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    large = cluster.add_node(num_cpus=3)
    ray.init(cluster.address, log_to_driver=False, logging_level="ERROR")
    topology = whale.Topology("slow")
    rows = topology.source(whale.sources.iterable([{"k": 1}] * 100_000), id="rows")
    rows.filter(slow, id="slow").sink(whale.sinks.collect(), id="out")
    job = whale.submit(topology)
    while job.state != "running":
        threading.Event().wait(0.1)
    print(ray.available_resources().get("CPU", 0), flush=True)
    cluster.remove_node(large, allow_graceful=False)
    try:
        job.wait(120)
    except whale.errors.ResourceError as error:
        print(error, flush=True)
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    main()
"""


def test_workers_fit_on_unequal_nodes_and_a_node_that_dies_is_named(
    tmp_path: Path, no_leaks: None
) -> None:
    script = tmp_path / "driver.py"
    script.write_text(DRIVER)
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    done = subprocess.run(
        [sys.executable, str(script)],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    free, *_, told = done.stdout.splitlines()
    assert float(free) == 0
    assert re.fullmatch(
        r"host-1 is gone: its Ray node \S+ died, and its workers cannot come back; "
        "submit the job again, on the nodes that remain",
        told,
    )
