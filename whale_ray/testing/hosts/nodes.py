"""A Ray cluster with one node in each of several hosts, the head in host 0.

A driver has to live on a node of the cluster: it runs in host 0 (`RayNodes.popen`), where it finds
Ray by the environment that it is given. Ray itself is not imported here; the nodes are what `ray
start` makes of an interpreter, and each is killed with the process that started it.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...configs.errors import ResourceError
from ...configs.units import MIB
from ...operators.arguments import check_seconds
from ...transport.clock import SystemClock
from .host import Host
from .namespaces import NamespaceHosts

PORT = 6379
"""Of the head. Each host has ports of its own, so this one is free."""
_POLL_NS = 50_000_000
_STARTED = "Ray runtime started."
_STOP_TIMEOUT_S = 10


class RayNodes:
    """Ray on all of `hosts`, in a `with` block; every node is one of Ray's, with its own store.

    Args:
        hosts: where.
        cpus: logical processors of each node; whale-ray's workers reserve one each.
        object_store_bytes: of each node; Ray takes no less than 75 MiB.
        start_timeout_s: how long all nodes together may take.

    Attributes:
        address: `host:port` of the cluster.
        environment: what a driver in a host needs to find and to be let into it.

    Raises:
        ResourceError: a node does not start; the message holds the end of what Ray wrote.
    """

    def __init__(
        self,
        hosts: NamespaceHosts,
        *,
        cpus: int = 2,
        object_store_bytes: int = 80 * MIB,
        start_timeout_s: float = 180.0,
    ) -> None:
        check_seconds("RayNodes", "start_timeout_s", start_timeout_s)
        self._hosts = hosts
        self._options = (f"--num-cpus={cpus}", f"--object-store-memory={object_store_bytes}")
        self._timeout_ns = int(start_timeout_s * 1e9)
        self._clock = SystemClock()
        self._nodes: list[subprocess.Popen[bytes]] = []
        self.address = f"{hosts[0].address}:{PORT}"
        self.environment = self._environment()

    def _environment(self) -> dict[str, str]:
        """Return this process' environment, pointed at this cluster, and away from the network."""
        token = self._hosts.folder / "token"
        return {
            **os.environ,
            "RAY_ADDRESS": self.address,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(token),
            "RAY_USAGE_STATS_ENABLED": "0",
        }

    def __enter__(self) -> RayNodes:
        token = self._hosts.folder / "token"
        token.write_text(secrets.token_hex(32), encoding="utf-8")
        token.chmod(0o600)
        deadline_ns = self._clock.monotonic_ns() + self._timeout_ns
        try:
            self._start(self._hosts[0], "--head", f"--port={PORT}", "--include-dashboard=false")
            self._await(self._hosts[:1], deadline_ns)
            for host in self._hosts[1:]:
                self._start(host, f"--address={self.address}")
            self._await(self._hosts[1:], deadline_ns)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _start(self, host: Host, *options: str) -> None:
        folder = self._hosts.folder / str(host.index)
        folder.mkdir()
        command = [
            *(sys.executable, "-m", "ray.scripts.scripts", "start", "--block"),
            *(f"--node-ip-address={host.address}", "--disable-usage-stats", *self._options),
            *("--include-log-monitor=false", f"--temp-dir={folder}", *options),
        ]
        with self._log(host).open("wb") as log:
            node = host.popen(
                command,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                process_group=0,  # Ctrl-C is for the driver, which then ends the nodes
            )
        self._nodes.append(node)

    def _log(self, host: Host) -> Path:
        return self._hosts.folder / f"node-{host.index}.log"

    def _await(self, hosts: Sequence[Host], deadline_ns: int) -> None:
        """Wait until Ray says of all `hosts` that it has started there."""
        for host in hosts:
            node = self._nodes[host.index]
            while _STARTED not in (told := self._log(host).read_text(encoding="utf-8")):
                late = self._clock.monotonic_ns() > deadline_ns
                if late or node.poll() is not None:
                    why = "not in time" if late else f"exit code {node.returncode}"
                    end = " / ".join(told.split("\n")[-12:])
                    msg = f"Ray does not start in {host.name} ({why}): {end}"
                    raise ResourceError(msg)
                self._clock.sleep_ns(_POLL_NS)

    def popen(self, arguments: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a driver in host 0 with this cluster's environment; see `Host.popen`."""
        return self._hosts[0].popen(arguments, **{"env": self.environment, **options})

    def close(self) -> None:
        """Stop all nodes, the head last, and wait for them. May be called twice."""
        for node in reversed(self._nodes):
            node.terminate()
        for node in reversed(self._nodes):
            try:
                node.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                node.kill()
                node.wait()
        for host in self._hosts:
            host.kill_all()
        self._nodes.clear()
