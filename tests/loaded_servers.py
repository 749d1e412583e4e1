"""Fork servers of jobs, forked from one process per test run that has loaded everything.

A job on plain processes starts a fork server, which takes about a second of a processor to load
what workers need. Here that is done once: every fork server is forked from a process that has
loaded it, then gets the environment, working directory and outputs of the test that starts the job.
What it does from then on is the same.

`python tests/loaded_servers.py FD GRACE_MS` is that process.
"""

from __future__ import annotations

import importlib
import os
import pickle
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from whale_ray.deployment.members import LOCAL_ADDRESS
from whale_ray.deployment.processes import fork_server
from whale_ray.deployment.processes.fork_server import ForkServer
from whale_ray.deployment.processes.process_worker import run_member

_ALSO_LOADED = ("duckdb", "hypothesis", "pandas", "pytest", "whale_ray.relay.relay")
"""What relays need, what pyarrow loads to convert rows, what the modules of tests import."""

_REQUEST_BYTES_MAX = 1 << 17
_OUTPUTS = (1, 2)
_POLL_S = 0.02


class LoadedServers:
    """Launches fork servers: called like `subprocess.Popen`, by any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._server: ForkServer | None = None  # started for the first job

    def __call__(
        self, command: list[str], *, pass_fds: Sequence[int], env: Mapping[str, str], **_: Any
    ) -> LaunchedServer:
        """Fork a fork server, as `command` would start it."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, theirs:
            with self._lock:
                self._server = self._server or ForkServer(_start)
                serial = self._server.fork(0, LOCAL_ADDRESS, theirs)
            request = pickle.dumps((int(command[-1]), os.getcwd(), dict(env)))
            socket.send_fds(ours, [request], [*pass_fds, *_OUTPUTS])
        return LaunchedServer(self, serial)

    def wait(self, serial: int, timeout_s: float) -> int | None:
        """Return how a server ended, or None if it is alive."""
        with self._lock:
            return self._started.wait(serial, timeout_s)

    def kill(self, serial: int) -> None:
        """Kill a server."""
        with self._lock:
            self._started.kill(serial)

    def pid(self, serial: int) -> int:
        """Return the id of a server's process, once it has been forked."""
        while (pid := self._started.pid(serial)) is None:
            assert self.wait(serial, _POLL_S) is None
        return pid

    @property
    def _started(self) -> ForkServer:
        assert self._server is not None
        return self._server

    def close(self) -> None:
        """End the process from which they are forked."""
        if self._server is not None:
            self._server.close(grace_s=0.0)


class LaunchedServer:
    """A fork server's process, with those methods of `subprocess.Popen` that `ForkServer` calls."""

    def __init__(self, servers: LoadedServers, serial: int) -> None:
        self._servers = servers
        self._serial = serial

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._servers.pid(self._serial)

    def poll(self) -> int | None:
        """Return the exit code, None while it runs."""
        return self._servers.wait(self._serial, 0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code once it has ended; raise TimeoutExpired if that takes too long."""
        until_s = float("inf") if timeout is None else time.monotonic() + timeout
        while (code := self._servers.wait(self._serial, _POLL_S)) is None:
            if time.monotonic() >= until_s:
                raise subprocess.TimeoutExpired("fork server", timeout or 0.0)
        return code

    def kill(self) -> None:
        """Kill it."""
        self._servers.kill(self._serial)


def _start(command: list[str], **options: Any) -> subprocess.Popen[Any]:
    # -P: else the folders beside this file would hide modules of the same names.
    return subprocess.Popen([sys.executable, "-P", __file__, *command[-2:]], **options)


def _become_fork_server(connection: int, _index: int, _address: str) -> None:
    """Become the fork server that a `LoadedServers` asks for."""
    with socket.socket(fileno=connection) as asked:
        data, (channel, *outputs), _, _ = socket.recv_fds(
            asked, _REQUEST_BYTES_MAX, 1 + len(_OUTPUTS)
        )
    grace_ms, folder, environment = pickle.loads(data)
    for there, here in zip(outputs, _OUTPUTS, strict=True):
        os.dup2(there, here)
        os.close(there)
    os.chdir(folder)
    sys.path.insert(0, folder)
    os.environ.clear()
    os.environ.update(environment)
    fork_server._Server(socket.socket(fileno=channel), grace_ms, run_member).serve()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    for name in _ALSO_LOADED:
        importlib.import_module(name)
    fork_server.main(_become_fork_server)
