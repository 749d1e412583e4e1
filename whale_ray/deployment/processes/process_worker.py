"""The process of a worker or a relay.

It is forked (fork_server.py), or started as
`python -m whale_ray.deployment.processes.process_worker FD INDEX ADDRESS`: the driver's socket, the
member's number, and the address of a relay.

One thread listens to the driver and carries out commands at once; the main thread carries out steps
one after another. When the driver's socket closes, the attempt is aborted, its output is dropped,
and the process ends, at the latest after `kill_grace_ms`.
"""

from __future__ import annotations

import os
import pickle
import queue
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from ...configs.errors import WhaleError
from ...control.controller_events import Raised
from ...control.fleet import CountersTaken, MemberMessage
from ...tasks.capture import Capture
from ...tasks.printed import PrintedRows, PrintLimit, RowWindow
from ...transport.clock import SystemClock
from ..envelope import Envelope
from ..member_host import COMMANDS, MemberHost, pack
from ..members import make_member
from ..signals import leave_stops_to_the_controller
from .message_socket import MessageSocket

_Call = tuple[int, str, tuple[Any, ...]]
_CALLS_MAX = 64
_ROW_MESSAGES_MAX = 16
_SWITCH_S = 0.0005
"""How long the loop waits for a thread that has the GIL, such as the one that writes counters.

Python's default of 5 ms is longer than a turn, and each call that gives the GIL away may cost it.
"""
_UNSENT_MAX = 65_536
"""Far more lines than a signal handler prints, and more than the limit of lines lets through."""


class _RowsToDriver:
    """Sends rows that sinks print to the driver, no faster than it prints them."""

    def __init__(self, send: Callable[[object], None]) -> None:
        self.window = RowWindow(_ROW_MESSAGES_MAX)
        self._send = send

    def send(self, rows: PrintedRows) -> None:
        """See `capture.RowForward`."""
        self.window.enter()
        self._send(rows)

    def await_all(self) -> None:
        """See `capture.RowForward`."""
        self.window.await_all()


class ProcessWorker:
    """Serves one connection to the driver."""

    def __init__(self, connection: MessageSocket, index: int, address: str) -> None:
        self._connection = connection
        self._index = index
        self._address = address
        self._calls: queue.Queue[_Call | None] = queue.Queue(_CALLS_MAX)
        self._sending = (
            threading.RLock()
        )  # what is printed while a message is sent is sent after it
        self._unsent: deque[bytes] = deque(maxlen=_UNSENT_MAX)
        self._is_sending = False
        self._host: MemberHost | None = None
        self._refused: WhaleError | None = None
        self._grace_s = 3.0
        self._capture: Capture | None = None
        self._rows = _RowsToDriver(self._send)

    def serve(self) -> None:
        """Run until the driver's socket closes."""
        self._start(pickle.loads(self._connection.receive()))  # noqa: S301  # from the driver
        threading.Thread(target=self._listen, name="control", daemon=True).start()
        self._send("ready")
        while (call := self._calls.get()) is not None:
            self._send(self._carry_out(*call))
        if self._host is not None:
            self._host.close()
        self._flush_output()

    def _start(self, envelope: Envelope) -> None:
        try:
            self._grace_s = envelope.kill_grace_ms / 1000
            self._capture_output(envelope)
            member = make_member(self._index, envelope, self._address, tell=self._tell)
            _show_name(f"whale {member.name}")
            self._host = MemberHost(self._index, member)
        except WhaleError as error:
            self._refused = error

    def _carry_out(self, attempt: int, method: str, arguments: tuple[Any, ...]) -> object:
        if self._host is None:
            assert self._refused is not None
            return Raised(self._index, attempt, method, self._refused)
        self._rows.window.abort(False)
        event = self._host.execute(attempt, method, arguments)
        self._flush_output()
        return event

    def _capture_output(self, envelope: Envelope) -> None:
        """Have the driver print what users' functions print here; relays run none."""
        if self._index >= envelope.workers:
            return
        limit = PrintLimit(envelope.output_lines_per_s, "not shown")
        forward = self._send if envelope.output_lines_per_s else None
        self._capture = Capture(
            f"worker {self._index}",
            forward,
            limit,
            SystemClock(),
            keep=forward is None,
            rows=None if forward is None else self._rows,
        )
        self._capture.install(envelope.log_levels)

    def _flush_output(self) -> None:
        if self._capture is not None:
            self._capture.flush()

    def _listen(self) -> None:
        """Take the driver's messages until it is gone; the process ends with this thread."""
        try:
            while True:
                message = self._connection.receive()
                self._take(*pickle.loads(message))  # noqa: S301  # from the driver
        except (EOFError, OSError):
            pass  # the driver is gone
        finally:
            self._leave()

    def _take(self, attempt: int, method: str, arguments: tuple[Any, ...]) -> None:
        if method == "counters":
            unknown = CountersTaken(self._index, None)
            self._send(unknown if self._host is None else self._host.counters())
        elif method == "printed":
            self._rows.window.confirm(*arguments)
        elif method in COMMANDS:
            if method == "abort":
                self._rows.window.abort(True)
            if self._host is not None:
                self._host.command(attempt, method, arguments)
        else:
            self._calls.put((attempt, method, arguments))

    def _tell(self, attempt: int, content: object) -> None:
        self._send(MemberMessage(self._index, attempt, content))

    def _leave(self) -> None:
        """End the process in order; exit at once when the grace period is over."""
        threading.Timer(self._grace_s, os._exit, (1,)).start()
        self._rows.window.abort(True)
        if self._host is not None:
            self._host.abort()
        self._calls.put(None)

    def _send(self, message: object) -> None:
        data = pack(message)
        with self._sending:
            self._unsent.append(data)
            if self._is_sending:
                return  # a signal handler or finalizer prints while this thread sends
            self._is_sending = True
            try:
                while self._unsent:
                    self._connection.send(self._unsent.popleft())
            except OSError:
                self._unsent.clear()  # the driver is gone; `_listen` finds that, too
            finally:
                self._is_sending = False


def _show_name(name: str) -> None:
    """Show the member's name in `ps` and `top`, up to 15 characters."""
    with open("/proc/self/comm", "w", encoding="utf-8") as file:
        file.write(name.replace(" of host-", " "))


def run_member(connection: int, index: int, address: str) -> None:
    """Serve the driver's socket, file descriptor `connection`, then end the process."""
    leave_stops_to_the_controller()
    sys.setswitchinterval(_SWITCH_S)
    ProcessWorker(MessageSocket(socket.socket(fileno=connection)), index, address).serve()
    # Threads of user code that do not end must not keep the process.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    run_member(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
