"""Workers as plain processes of this host, each joined to the driver by one socket.

A worker's death is known from the kernel: its socket closes. So is the driver's: a worker whose
socket closes aborts its attempt and ends.
"""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
from collections import deque
from multiprocessing.connection import Connection, wait
from typing import Any

import cloudpickle

from ..configs.errors import ResourceError
from .controller import Died, Respawned
from .envelope import Envelope, seal
from .fleet import Assignment, Fleet, FleetEvent

_EVENTS_MAX = 4096


class _Member:
    """One worker process and the driver's end of its socket."""

    def __init__(self, index: int) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", "whale_ray.runtime.process_worker"]
            # A process group of its own: Ctrl-C reaches the driver alone, which drains the job.
            self.process = subprocess.Popen(
                [*command, str(theirs.fileno()), str(index)],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                process_group=0,
                env=_environment(),
            )
        self.connection = Connection(ours.detach())
        self.ready = False

    def send(self, message: object) -> None:
        """Send a message; if the worker is gone, its death arrives as an event anyway."""
        try:
            self.connection.send_bytes(cloudpickle.dumps(message))
        except OSError:
            pass  # next_event finds the closed socket

    def close(self) -> None:
        """Close the socket, upon which a worker that still lives ends."""
        self.connection.close()


class ProcessFleet(Fleet):
    """`workers` processes."""

    def __init__(self, workers: int) -> None:
        self._count = workers
        self._members: dict[int, _Member] = {}
        self._envelope: Envelope | None = None
        self._events: deque[FleetEvent] = deque(maxlen=_EVENTS_MAX)
        self._respawning: set[int] = set()

    def start(self, assignment: Assignment) -> None:
        """Start the processes; they report back when they are ready for calls."""
        self._envelope = seal(assignment)
        for index in range(self._count):
            self._spawn(index)

    def _spawn(self, index: int) -> None:
        try:
            member = _Member(index)
        except OSError as error:
            msg = f"cannot start worker {index}: {error.strerror}; close other programs"
            raise ResourceError(msg) from error
        self._members[index] = member
        member.send(self._envelope)

    def call(self, worker: int, attempt: int, method: str, arguments: tuple[Any, ...]) -> None:
        """Send a call to a worker."""
        if worker in self._members:
            self._members[worker].send((attempt, method, arguments))

    def respawn(self, worker: int) -> None:
        """Kill what is left of a worker and start another process in its place."""
        self._bury(worker, grace_s=0.0)
        alive = [e for e in self._events if not (isinstance(e, Died) and e.worker == worker)]
        self._events = deque(alive, maxlen=_EVENTS_MAX)  # the new process has not died
        self._respawning.add(worker)
        self._spawn(worker)

    def next_event(self, timeout_ns: int) -> FleetEvent | None:
        """Return the next message of any worker, or the death of one."""
        if self._events:
            return self._events.popleft()
        connections = {member.connection: index for index, member in self._members.items()}
        for connection in wait(list(connections), timeout_ns / 1e9):
            assert isinstance(connection, Connection)
            event = self._receive(connections[connection], connection)
            if event is not None:
                assert len(self._events) < _EVENTS_MAX, "one event per worker at most"
                self._events.append(event)
        return self._events.popleft() if self._events else None

    def _receive(self, index: int, connection: Connection) -> FleetEvent | None:
        try:
            message = pickle.loads(connection.recv_bytes())  # noqa: S301  # from our own process
        except (EOFError, OSError):
            return Died(index, self._bury(index, grace_s=1.0))
        if message == "ready":
            if index not in self._respawning:
                return None
            self._respawning.discard(index)
            return Respawned(index)
        assert isinstance(message, FleetEvent)
        return message

    def _bury(self, index: int, grace_s: float) -> str:
        """End a worker's process; return how it died."""
        member = self._members.pop(index, None)
        if member is None:
            return "it was gone already"
        member.close()
        try:
            code = member.process.wait(grace_s)
        except subprocess.TimeoutExpired:
            member.process.kill()
            code = member.process.wait()
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return f"process {member.process.pid} ended with {how}"

    def shutdown(self, grace_ns: int) -> None:
        """Close all sockets, upon which the workers end; kill those that do not."""
        for member in self._members.values():
            member.close()
        for index in list(self._members):
            self._bury(index, grace_ns / 1e9)


def _environment() -> dict[str, str]:
    """Return the driver's environment, with whale_ray importable as it is here."""
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    environment = dict(os.environ)
    path = [entry for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry]
    root = package if os.path.isdir(os.path.join(package, "whale_ray")) else None
    if root is not None and root not in path:
        environment["PYTHONPATH"] = os.pathsep.join([*path, root])
    return environment
