"""Ray on several hosts: a node in each, joined over the links, and nothing left afterwards."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from whale_ray.configs.errors import ResourceError
from whale_ray.testing.hosts import NamespaceHosts, RayNodes
from whale_ray.testing.hosts.owners import processes_in

pytestmark = [pytest.mark.usefixtures("hosts_possible"), pytest.mark.ray, pytest.mark.long]

PATIENCE_S = 240
DRIVER = """
import json
import ray

ray.init(log_to_driver=False, logging_level="ERROR")

@ray.remote(num_cpus=1)
def where():
    return ray.util.get_node_ip_address()

def on(node):
    pinned = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node["NodeID"], False)
    return where.options(scheduling_strategy=pinned).remote()

def ask():
    alive = [node for node in ray.nodes() if node["Alive"]]
    told = {node["NodeManagerAddress"]: node["Resources"] for node in alive}
    told = {at: [has["CPU"], has["object_store_memory"]] for at, has in told.items()}
    print(json.dumps([told, sorted(ray.get([on(node) for node in alive]))]), flush=True)

ask()
input()
ask()
"""


def test_every_host_has_a_node_and_a_cut_of_seconds_costs_none():
    with NamespaceHosts(3, rate_mbit=500) as hosts, RayNodes(hosts, cpus=3) as nodes:
        driver = nodes.popen(
            [sys.executable, "-c", DRIVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        told, places = json.loads(driver.stdout.readline())
        assert told == {host.address: [3.0, 80 << 20] for host in hosts}
        assert places == [host.address for host in hosts]

        hosts[1].cut()
        listens = [sys.executable, "-c", "import select; select.select([], [], [], 4)"]
        hosts[0].popen(listens).wait(PATIENCE_S)
        hosts[1].heal()
        output, _ = driver.communicate(b"\n", PATIENCE_S)
        assert json.loads(output)[1] == places
        assert driver.returncode == 0

        nodes.close()
        assert not processes_in([host.name for host in hosts])


def test_a_node_that_does_not_start_says_why():
    with NamespaceHosts(1) as hosts:
        nodes = RayNodes(hosts, object_store_bytes=1)
        with pytest.raises(ResourceError, match=r"Ray does not start in whale-ray-\S+-0 \(exit"):
            nodes.__enter__()
        assert not processes_in([hosts[0].name])
