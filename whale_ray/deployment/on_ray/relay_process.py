"""A relay on a Ray node: a process of its own, which loads neither Ray nor code of the user.

Its actor forwards the controller's calls. When the process dies the actor exits, too, so that Ray
reports that and restarts it.
"""

from __future__ import annotations

import os
import pickle
import queue
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from typing import Any

import cloudpickle

from ...configs.errors import AttemptLostError
from ...control.controller_events import Raised, Returned
from ...control.fleet import CountersTaken, MemberMessage
from ...metrics.counters import MemberCounters
from ...plan.hosts import host_name
from ..envelope import Envelope
from ..processes.fork_server import child_environment
from ..processes.message_socket import MessageSocket
from ..signals import stops_deferred

_COUNTERS_TIMEOUT_S = 5.0
_ANSWERS_MAX = 64
_MESSAGES_MAX = 1024
"""Messages to the controller that wait to be fetched; more are dropped, as relays repeat them."""


class RelayProcess:
    """Member `index` of the job in `envelope`, as a child process that listens at `address`.

    Steps block until the child has carried them out.
    """

    def __init__(self, index: int, envelope: Envelope, address: str) -> None:
        self._name = f"relay of {host_name(index - envelope.workers)}"
        self._attempt = -1
        self._grace_s = envelope.kill_grace_ms / 1000
        self._ended = False
        self._answers: queue.Queue[Returned | Raised] = queue.Queue(_ANSWERS_MAX)
        self._counters: queue.Queue[CountersTaken] = queue.Queue(_ANSWERS_MAX)
        self._outbox: queue.Queue[MemberMessage] = queue.Queue(_MESSAGES_MAX)
        self._sending = threading.Lock()
        ours, theirs = socket.socketpair()
        self._connection = MessageSocket(ours)
        with theirs, stops_deferred():
            command = [sys.executable, "-m", "whale_ray.deployment.processes.process_worker"]
            self._process = subprocess.Popen(
                [*command, str(theirs.fileno()), str(index), address],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=child_environment(),
            )
        self._send(envelope.for_member(index))
        threading.Thread(target=self._listen, name="relay", daemon=True).start()

    @property
    def name(self) -> str:
        """Its name in messages."""
        return self._name

    @property
    def attempt(self) -> int:
        """The attempt that it is in; −1 before the first."""
        return self._attempt

    def open(self, attempt: int) -> Any:
        """See `Relay.open`."""
        self._attempt = attempt
        return self._call(attempt, "open")

    def link(self, attempt: int, *arguments: Any) -> Any:
        """See `Relay.link`."""
        return self._call(attempt, "link", *arguments)

    def connect(self, attempt: int, *arguments: Any) -> Any:
        """See `Relay.connect`."""
        return self._call(attempt, "connect", *arguments)

    def run(self, attempt: int, *arguments: Any) -> Any:
        """See `Relay.run`."""
        return self._call(attempt, "run", *arguments)

    def drain(self, attempt: int) -> None:
        """Do nothing: a relay runs until all workers have ended."""

    def rejoin(self, attempt: int, *arguments: Any) -> Any:
        """See `Relay.rejoin`."""
        self._attempt = attempt
        return self._call(attempt, "rejoin", *arguments)

    def tell(self, attempt: int, content: object) -> None:
        """See `Relay.tell`."""
        self._send((attempt, "tell", (content,)))

    def messages(self, timeout_s: float) -> list[MemberMessage]:
        """Return the relay's messages since the last call; wait for the first one."""
        found = []
        try:
            found.append(self._outbox.get(timeout=timeout_s))
            while True:
                found.append(self._outbox.get_nowait())
        except queue.Empty:
            return found

    def finish(self, attempt: int) -> None:
        """See `Relay.finish`."""
        self._send((attempt, "finish", ()))

    def abort(self, attempt: int) -> None:
        """See `Relay.abort`."""
        self._send((attempt, "abort", ()))

    def counters(self) -> MemberCounters:
        """Return its counters; raises AttemptLostError if they do not come in time."""
        while not self._counters.empty():
            self._counters.get_nowait()  # one that came too late for an earlier call
        self._send((self._attempt, "counters", ()))
        try:
            counters = self._counters.get(timeout=_COUNTERS_TIMEOUT_S).counters
        except queue.Empty:
            counters = None
        if counters is None:
            msg = "the relay does not send its counters"
            raise AttemptLostError(msg)
        return counters

    def close(self) -> None:
        """End the process, which releases everything; kill it if it takes too long."""
        self._ended = True
        self._connection.close()
        try:
            self._process.wait(self._grace_s + 1.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _send(self, message: object) -> None:
        try:
            with self._sending:
                self._connection.send(cloudpickle.dumps(message))
        except OSError:
            pass  # `_listen` finds the closed socket

    def _call(self, attempt: int, method: str, *arguments: Any) -> Any:
        """Have the child take a step; if it dies instead, this process exits."""
        self._send((attempt, method, arguments))
        answer = self._answers.get()
        if isinstance(answer, Raised):
            raise answer.error
        return answer.result

    def _listen(self) -> None:
        """Take the child's messages until its socket closes."""
        try:
            while True:
                message = pickle.loads(self._connection.receive())  # noqa: S301  # our child
                if isinstance(message, CountersTaken):
                    self._counters.put(message)
                elif isinstance(message, MemberMessage):
                    with suppress(queue.Full):
                        self._outbox.put_nowait(message)
                elif isinstance(message, Returned | Raised):
                    self._answers.put(message)
        except (EOFError, OSError):
            if not self._ended:
                os._exit(1)  # Ray notices, and so does the controller
