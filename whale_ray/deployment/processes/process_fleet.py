"""Members as plain processes of this machine, each joined to the driver by one socket.

Several logical hosts can share the machine; a `HostPlace` puts one into a network of its own.

When a member dies, the kernel closes its socket, and the driver learns it. When the driver dies,
members find their sockets closed, abort the attempt and end. Once a process has its envelope, the
driver never blocks on it: messages that it does not take, since it hangs or is stopped, are kept.
"""

from __future__ import annotations

import pickle
import selectors
import socket
import subprocess
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import cloudpickle

from ...configs.errors import ResourceError
from ...control.controller_events import Died, Respawned
from ...control.fleet import Fleet, FleetEvent
from ...multicast.tree_messages import TreeOrders
from ...plan.assignment import Assignment
from ...plan.physical import PhysicalPlan
from ...tasks.printed import PrintedLine, PrintedRows
from ..envelope import Envelope, seal
from ..members import LOCAL_ADDRESS
from ..printer import Printer
from .fork_server import ForkServer, Launch
from .message_socket import PatientSocket
from .waiting_server import ServerConditions, keep_waiting, take_waiting_server

_EVENTS_MAX = 4096
_PRINTED_MAX = 1 << 20
"""More than all workers together send before they wait (`printed.RowWindow`)."""
_WOKEN = -1
"""The key of the socket that wakes the thread when rows have been printed."""
_WAKES_MAX = 4096
_KILL_TIMEOUT_S = 10.0
_HAND_OVER_TIMEOUT_S = 10.0
"""The longest wait without progress; the rest is sent in the background."""


@dataclass(frozen=True)
class HostPlace:
    """Where the members of a logical host run.

    Attributes:
        address: the IP address at which its relay listens.
        launch: starts its processes, in a network namespace for instance.
    """

    address: str = LOCAL_ADDRESS
    launch: Launch = subprocess.Popen


HERE = HostPlace()


class _MemberProcess:
    """One process and the driver's end of its socket."""

    def __init__(self, index: int, address: str, server: ForkServer) -> None:
        ours, theirs = socket.socketpair()
        self.socket = PatientSocket(ours)
        self._server = server
        with theirs:
            try:
                self._serial = server.fork(index, address, theirs)
            except BaseException:
                ours.close()
                raise

    def send(self, message: object) -> None:
        """Send a message; if the member is gone, an event reports that anyway."""
        self.socket.send(cloudpickle.dumps(message))

    def hand_over(self, message: object, limit_s: float) -> None:
        """Send a message that may be large; wait for a limited time until it is taken."""
        self.send(message)
        with selectors.DefaultSelector() as selector:
            selector.register(self.socket, selectors.EVENT_WRITE)
            while self.socket.has_unsent and selector.select(limit_s):
                self.socket.flush()

    def close(self) -> None:
        """Close the socket; a member that is alive then ends."""
        self.socket.close()

    def end(self, grace_s: float) -> str:
        """Wait for the end of the process, and kill it if that takes too long; say how it ended."""
        code = self._server.wait(self._serial, grace_s)
        if code is None:
            self._server.kill(self._serial)
            code = self._server.wait(self._serial, _KILL_TIMEOUT_S)
        if code is None:  # it serves no other process either: wait for none of them
            self._server.give_up()
        if self._server.lost:
            return self._server.how_it_ended()
        how = "no trace" if code is None else f"signal {-code}" if code < 0 else f"exit code {code}"
        return f"process {self._server.pid(self._serial)} ended with {how}"


class ProcessFleet(Fleet):
    """A process per member; `places` has one place per logical host, none means all are here."""

    def __init__(self, places: Sequence[HostPlace] = ()) -> None:
        self._places = tuple(places)
        self._plan: PhysicalPlan | None = None
        self._processes: dict[int, _MemberProcess] = {}
        self._envelope: Envelope | None = None
        self._grace_ms = 0
        self._events: deque[FleetEvent] = deque(maxlen=_EVENTS_MAX)
        self._respawning: set[int] = set()
        self._servers: dict[Launch, ForkServer] = {}
        self._all_servers: list[ForkServer] = []
        self._conditions: ServerConditions | None = None  # of the server of this place
        self._printer = Printer()
        self._printed: deque[tuple[_MemberProcess, int | None]] = deque(maxlen=_PRINTED_MAX)
        self._woken, self._waker = socket.socketpair()
        for end in (self._woken, self._waker):
            end.setblocking(False)

    def start(self, assignment: Assignment) -> None:
        """Start the processes; each sends a message when it takes calls."""
        self._envelope = seal(assignment)
        self._grace_ms = assignment.settings.runtime.kill_grace_ms
        self._plan = assignment.plan
        for index in range(self._plan.members):
            self._spawn(index)

    def _spawn(self, index: int) -> None:
        assert self._plan is not None, "start() comes first"
        place = self._places[self._plan.host_of(index)] if self._places else HERE
        try:
            self._processes[index] = self._fork(index, place)
        except OSError as error:
            name = self._plan.member_name(index)
            msg = f"cannot start {name}: {error.strerror}; close other programs"
            raise ResourceError(msg) from error
        assert self._envelope is not None
        # One at a time: the envelopes of all members might not fit into memory.
        self._processes[index].hand_over(self._envelope.for_member(index), _HAND_OVER_TIMEOUT_S)

    def _fork(self, index: int, place: HostPlace) -> _MemberProcess:
        server = self._server(place.launch)
        try:
            return _MemberProcess(index, place.address, server)
        except ResourceError:  # the server has died just now: another one forks
            return _MemberProcess(index, place.address, self._server(place.launch))

    def _server(self, launch: Launch) -> ForkServer:
        """Return the fork server that `launch` starts; a new one if it has died."""
        server = self._servers.get(launch)
        if server is None or server.lost:
            server = self._servers[launch] = self._start_server(launch)
            self._all_servers.append(server)
        return server

    def _start_server(self, launch: Launch) -> ForkServer:
        if launch is not HERE.launch:
            return ForkServer(launch, self._grace_ms)
        self._conditions = ServerConditions.now(self._grace_ms)
        return take_waiting_server(self._conditions) or ForkServer(launch, self._grace_ms)

    def call(self, member: int, attempt: int, method: str, arguments: tuple[Any, ...]) -> None:
        """Send a call to a member."""
        process = self._processes.get(member)
        if process is None:
            return
        is_repeated = method == "tell" and isinstance(arguments[0], TreeOrders)
        if is_repeated and process.socket.has_unsent:
            return  # else repetitions would pile up
        process.send((attempt, method, arguments))

    def respawn(self, member: int) -> None:
        """Kill a member's process, if it is alive, and start another one."""
        self._end_process(member, grace_s=0.0)
        alive = [e for e in self._events if not (isinstance(e, Died) and e.member == member)]
        self._events = deque(alive, maxlen=_EVENTS_MAX)  # the new process has not died
        self._respawning.add(member)
        self._spawn(member)

    def next_event(self, timeout_ns: int) -> FleetEvent | None:
        """Return the next message of any member, or the death of one."""
        if self._events:
            return self._events.popleft()
        for index, events in self._ready(timeout_ns / 1e9):
            if index == _WOKEN:
                self._confirm_printed()
                continue
            if events & selectors.EVENT_WRITE:
                self._processes[index].socket.flush()
            event = self._receive(index) if events & selectors.EVENT_READ else None
            if event is not None:
                assert len(self._events) < _EVENTS_MAX, "one event per member at most"
                self._events.append(event)
        return self._events.popleft() if self._events else None

    def _ready(self, timeout_s: float) -> list[tuple[int, int]]:
        """Return the members whose sockets are readable or writable, with the events of each."""
        with selectors.PollSelector() as selector:  # one system call, whatever their number
            selector.register(self._woken, selectors.EVENT_READ, _WOKEN)
            for index, process in self._processes.items():
                also = selectors.EVENT_WRITE if process.socket.has_unsent else 0
                selector.register(process.socket, selectors.EVENT_READ | also, index)
            return [(key.data, events) for key, events in selector.select(timeout_s)]

    def _receive(self, index: int) -> FleetEvent | None:
        try:
            message = self._next_message(index)
        except (EOFError, OSError):
            return Died(index, self._end_process(index, grace_s=1.0))
        if message is None:
            return None
        if message == "ready":
            if index not in self._respawning:
                return None
            self._respawning.discard(index)
            return Respawned(index)
        assert isinstance(message, FleetEvent)
        return message

    def _next_message(self, index: int) -> object:
        """Return the next message of a member, None if there is none; print lines on the way.

        Raises EOFError, or OSError, if the process is gone.
        """
        while (data := self._processes[index].socket.receive()) is not None:
            message = pickle.loads(data)  # noqa: S301  # from our own process
            if isinstance(message, PrintedRows):
                self._printer.take_rows(
                    message.lines, partial(self._note_printed, self._processes[index])
                )
                continue
            if not isinstance(message, list):
                return message
            lines: list[PrintedLine] = message
            self._printer.take(lines)
        return None

    def _note_printed(self, process: _MemberProcess, error: int | None) -> None:
        """Have the thread that waits for events confirm to a worker that its rows were printed."""
        self._printed.append((process, error))
        self.wake()

    def wake(self) -> None:
        """See `Fleet.wake`."""
        with suppress(OSError):  # it is full, and wakes the thread anyway; or the fleet has ended
            self._waker.send(b"x")

    def _confirm_printed(self) -> None:
        """Tell workers which of their rows were printed."""
        with suppress(BlockingIOError):
            self._woken.recv(_WAKES_MAX)
        while self._printed:
            process, error = self._printed.popleft()
            if process in self._processes.values():
                process.send((0, "printed", (error,)))

    def _end_process(self, index: int, grace_s: float) -> str:
        """End a member's process; return how it ended."""
        process = self._processes.pop(index, None)
        if process is None:
            return "it was gone already"
        process.close()
        return process.end(grace_s)

    def shutdown(self, grace_ns: int) -> None:
        """Close all sockets, so that the members end; kill those that do not in time."""
        for index, process in self._processes.items():
            with suppress(EOFError, OSError):  # it has ended already
                while self._next_message(index) is not None:
                    pass  # only its printed lines still matter
            process.close()
        for index in list(self._processes):
            self._end_process(index, grace_ns / 1e9)
        self._printer.close(grace_ns / 1e9)
        self._woken.close()
        self._waker.close()
        self._keep_server()
        for server in self._all_servers:
            server.close(_KILL_TIMEOUT_S)

    def _keep_server(self) -> None:
        """Let the server of this place wait for the next job of the driver."""
        server = self._servers.get(HERE.launch)
        if server is not None and self._conditions is not None and server.is_free():
            self._all_servers.remove(server)
            keep_waiting(server, self._conditions)
