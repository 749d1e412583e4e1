"""Starts processes by forking one that has loaded everything already, and tells how they ended.

Loading numpy, numba and our compiled code takes a process about a second; a fork takes milliseconds
and shares the memory. The server never runs a user's code, so neither does a relay forked from it.

`python -m whale_ray.runtime.fork_server FD`: the socket of a `ForkServer`, which takes requests::

    ("fork", serial, index, address), with the member's socket
    ("kill", serial)

It answers (serial, pid, None) when a process has begun, (serial, pid, status) when it has ended.

When that socket closes, the server ends. Its children go by their own (process_worker.py).
"""

from __future__ import annotations

import gc
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any

_MESSAGE_BYTES_MAX = 1 << 16
_FLUSHED = (sys.stdout, sys.stderr)

Launch = Callable[..., "subprocess.Popen[Any]"]
"""Starts a process; called like `subprocess.Popen`."""


class ForkServer:
    """The driver's side: asks for processes, and is told of their ends. One thread uses it."""

    def __init__(self, launch: Launch = subprocess.Popen) -> None:
        """Start the server; it serves as soon as it has loaded. Raises OSError if it cannot."""
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._pids: dict[int, int] = {}
        self._statuses: dict[int, int] = {}
        self._serial = 0
        self._lost = False
        with theirs:
            # A process group of its own: Ctrl-C reaches the driver alone, which drains the job.
            self._process = launch(
                [sys.executable, "-m", "whale_ray.runtime.fork_server", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                process_group=0,
                env=child_environment(),
            )

    @property
    def lost(self) -> bool:
        """Whether the server itself has died."""
        return self._lost or self._process.poll() is not None

    def fork(self, index: int, address: str, connection: socket.socket) -> int:
        """Start member `index` with `connection` as its end of the driver's socket.

        Returns the serial number of the new process. Raises OSError if the server is gone.
        """
        self._serial += 1
        request = pickle.dumps(("fork", self._serial, index, address))
        socket.send_fds(self._socket, [request], [connection.fileno()])
        return self._serial

    def wait(self, serial: int, timeout_s: float) -> int | None:
        """Return how a process ended (`subprocess.Popen.returncode`), or None if it lives.

        If the server has died, nobody knows, and the process is killed: −SIGKILL.
        """
        while serial not in self._statuses:
            if not self._receive(timeout_s):
                break
        if serial not in self._statuses and self._lost:
            self.kill(serial)
            return -signal.SIGKILL
        return self._statuses.get(serial)

    def pid(self, serial: int) -> int | None:
        """Return the id of a process, None as long as it has not started."""
        return self._pids.get(serial)

    def kill(self, serial: int) -> None:
        """Kill a process."""
        try:
            self._socket.send(pickle.dumps(("kill", serial)))
        except OSError:
            self._lost = True
            if serial in self._pids:
                try:
                    os.kill(self._pids[serial], signal.SIGKILL)
                except ProcessLookupError:
                    pass  # it has ended meanwhile

    def close(self, grace_s: float) -> None:
        """End the server, which takes no children with it; kill it if it takes too long."""
        self._socket.close()
        try:
            self._process.wait(grace_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _receive(self, timeout_s: float) -> bool:
        """Take one message; False if none came in time, or the server is gone."""
        if self._lost or not select.select([self._socket], [], [], max(0.0, timeout_s))[0]:
            return False
        try:
            data = self._socket.recv(_MESSAGE_BYTES_MAX)
        except OSError:
            data = b""
        if not data:
            self._lost = True
            return False
        serial, pid, status = pickle.loads(data)  # noqa: S301  # from our own child
        self._pids[serial] = pid
        if status is not None:
            self._statuses[serial] = status
        return True


class _Server:
    """The server's side."""

    def __init__(self, channel: socket.socket, run: Callable[[int, int, str], None]) -> None:
        self._channel = channel
        self._run = run
        self._children: dict[int, tuple[int, int]] = {}  # by pidfd: serial and pid
        self._poller = select.poll()
        self._poller.register(channel, select.POLLIN)

    def serve(self) -> None:
        """Serve until the driver's end closes."""
        while True:
            for fd, _ in self._poller.poll():
                if fd != self._channel.fileno():
                    self._bury(fd)
                elif not self._take():
                    return

    def _take(self) -> bool:
        """Carry out a request; False when there will be no more."""
        try:
            data, fds, _, _ = socket.recv_fds(self._channel, _MESSAGE_BYTES_MAX, 1)
        except ConnectionResetError:
            return False  # the driver was killed before it had read all answers
        if not data:
            return False
        kind, serial, *arguments = pickle.loads(data)  # noqa: S301  # from our own driver
        if kind == "fork":
            self._fork(serial, fds[0], *arguments)
        else:
            self._kill(serial)
        return True

    def _fork(self, serial: int, connection: int, index: int, address: str) -> None:
        for stream in _FLUSHED:
            stream.flush()
        pid = os.fork()
        if pid == 0:
            self._become(connection, index, address)
        os.close(connection)
        pidfd = os.pidfd_open(pid)
        self._children[pidfd] = serial, pid
        self._poller.register(pidfd, select.POLLIN)
        self._tell(serial, pid, None)

    def _become(self, connection: int, index: int, address: str) -> None:
        """Go on as a member, and never return."""
        import numpy as np

        try:
            os.setpgid(0, 0)
            self._channel.close()
            for pidfd in self._children:
                os.close(pidfd)
            np.random.seed()  # noqa: NPY002  # the global one, which users may use, was forked
            self._run(connection, index, address)
        finally:
            os._exit(1)

    def _kill(self, serial: int) -> None:
        for pidfd, (of, _) in self._children.items():
            if of == serial:
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)

    def _bury(self, pidfd: int) -> None:
        serial, pid = self._children.pop(pidfd)
        self._poller.unregister(pidfd)
        os.close(pidfd)
        _, status = os.waitpid(pid, 0)
        self._tell(serial, pid, os.waitstatus_to_exitcode(status))

    def _tell(self, serial: int, pid: int, status: int | None) -> None:
        try:
            self._channel.send(pickle.dumps((serial, pid, status)))
        except OSError:
            pass  # the driver is gone: the next look at the channel says so


def child_environment() -> dict[str, str]:
    """Return the driver's environment, with whale_ray importable as it is here."""
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    environment = dict(os.environ)
    path = [entry for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry]
    root = package if os.path.isdir(os.path.join(package, "whale_ray")) else None
    if root is not None and root not in path:
        environment["PYTHONPATH"] = os.pathsep.join([*path, root])
    return environment


def main() -> None:
    """Load everything, then serve on file descriptor FD."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver decides what Ctrl-C means
    from ..transport.wire import codec
    from . import worker  # noqa: F401  # loaded for the children
    from .process_worker import run_member

    codec.warm_up()
    gc.collect()
    gc.freeze()  # so that collections in the children leave the shared memory alone
    _Server(socket.socket(fileno=int(sys.argv[1])), run_member).serve()


if __name__ == "__main__":
    main()
