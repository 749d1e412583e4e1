"""Starts processes by forking one that has loaded everything already, and reports their ends.

Loading numpy, numba and our compiled code takes a process about a second; a fork takes milliseconds
and shares the memory. The server never runs a user's code, so neither does a relay forked from it.

`python -m whale_ray.deployment.processes.fork_server FD GRACE_MS`: the socket of a `ForkServer`,
which sends requests::

    ("fork", serial, index, address), with the member's socket
    ("kill", serial)

and gets the answers (serial, pid, None) when a process has started, and (serial, pid, status) when
it has ended. It may serve one job after another. When that socket closes, the driver has ended or
needs it no more. Members then end by
themselves, since their own sockets close, too. The server kills those that have not ended after
GRACE_MS (a function may hold the GIL), and ends.
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
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Any

import whale_ray

from ...configs.errors import ResourceError
from ...transport.clock import SystemClock
from ..closed_streams import open_closed_descriptors, open_closed_streams
from ..signals import leave_stops_to_the_controller, stops_deferred

_MESSAGE_BYTES_MAX = 1 << 16
_GONE_TIMEOUT_S = 1.0
_SEND_TIMEOUT_S = 60.0
"""A server that takes no request for this time counts as lost."""
_LOADED = (
    "...worker.worker",
    "...tasks.compiled_transforms",
    "...state.store",
    "...state.one_key",
    "...operators.expressions.emitters.comparisons",
    "...operators.expressions.kernels.comparisons",
    "...operators.joins.broadcast_table",
    "...operators.joins.join_streams",
    "...operators.joins.session_streams",
    "...operators.keyed.keyed_process",
    "...operators.windows.aggregate_windows",
    "...operators.windows.clock_windows",
    "...operators.windows.count_windows",
    "...operators.windows.partial_windows",
    "...operators.windows.session_windows",
    "...operators.windows.top_rows",
    "...operators.aggregates.binding",
    "...api.topology",  # what builds a topology is loaded with the module whose functions it uses
    "pyarrow.parquet",
)
_COMPILED = (
    "...transport.doorbell",
    "...transport.ring_kernels",
    "...state.keys",
    "...state.index",
    "...state.index_kernels",
    "...state.index_deletion",
    "...state.values",
    "...transport.wire.piece_kernels",
    "...operators.aggregates.kernels",
    "...operators.event_time_kernels",
    "...operators.joins.kernels",
    "...operators.joins.span_kernels",
    "...operators.joins.table_kernels",
    "...operators.windows.batch_combiner",
    "...operators.windows.block_times",
    "...operators.windows.greatest_rows",
    "...operators.windows.held_deltas",
    "...operators.windows.loop_groups",
    "...operators.windows.overlapping_windows",
    "...operators.windows.sessions",
    "...operators.windows.slice_stores",
    "...operators.windows.slices",
    "...operators.windows.slot_cache",
)
"""Modules with functions that most workers call; each worker would load their machine code."""

Launch = Callable[..., "subprocess.Popen[Any]"]
"""Starts a process; called like `subprocess.Popen`."""


class ForkServer:
    """The driver's side: starts and kills processes, and learns of their ends. For one thread."""

    def __init__(self, launch: Launch = subprocess.Popen, grace_ms: int = 3000) -> None:
        """Start the server; it serves as soon as it has loaded.

        Args:
            launch: starts its process.
            grace_ms: how long members may outlive this process.

        Raises:
            ResourceError: the kernel, or a container, has no pidfds.
            OSError: it cannot start.
        """
        _check_pidfds()
        open_closed_descriptors()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(_SEND_TIMEOUT_S)
        self._answers = select.poll()
        self._answers.register(self._socket, select.POLLIN)
        self._pids: dict[int, int] = {}
        self._handles: dict[int, int] = {}  # pidfds, which unlike pids are never reused
        self._statuses: dict[int, int] = {}
        self._alive: set[int] = set()
        self._serial = 0
        self._lost = False
        self._gave_up = False
        with theirs, stops_deferred():
            # A process group of its own: Ctrl-C reaches the driver alone, which drains the job.
            command = [sys.executable, "-m", "whale_ray.deployment.processes.fork_server"]
            self._process = launch(
                [*command, str(theirs.fileno()), str(grace_ms)],
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

        Returns the serial number of the new process. Raises ResourceError if the server is gone.
        """
        while self._receive(0.0):
            pass  # unread answers would fill the socket and block the server
        self._serial += 1
        request = pickle.dumps(("fork", self._serial, index, address))
        try:
            socket.send_fds(self._socket, [request], [connection.fileno()])
        except OSError as error:
            raise self._gone() from error
        self._alive.add(self._serial)
        return self._serial

    def _gone(self) -> ResourceError:
        self._lost = True
        return ResourceError(f"{self.how_it_ended()}; what it printed stands above")

    def how_it_ended(self) -> str:
        """Return how the server itself ended, in words; only once it is `lost`."""
        who = "the process that starts workers"
        if self._gave_up:
            return f"{who} (id {self._process.pid}) does not answer: it was stopped, or hangs"
        try:
            return f"{who} ended with exit code {self._process.wait(_GONE_TIMEOUT_S)}"
        except subprocess.TimeoutExpired:
            return f"{who} (id {self._process.pid}) does not answer"

    def wait(self, serial: int, timeout_s: float) -> int | None:
        """Return how a process ended (`subprocess.Popen.returncode`), or None if it is alive.

        If the server has died that is unknown, and the process is killed: −SIGKILL.
        """
        while serial not in self._statuses:
            if not self._receive(timeout_s):
                break
        if serial not in self._statuses and self._lost:
            self.kill(serial)
            return -signal.SIGKILL
        return self._statuses.get(serial)

    def pid(self, serial: int) -> int | None:
        """Return the id of a process, None while it has not started."""
        return self._pids.get(serial)

    def is_free(self) -> bool:
        """Return whether it can serve another job: it is alive, and no process that it started is.

        How those of the job before have ended is forgotten then.
        """
        while self._receive(0.0):
            pass
        if self.lost or self._alive:
            return False
        self._pids.clear()
        self._statuses.clear()
        return True

    def kill(self, serial: int) -> None:
        """Kill a process."""
        try:
            self._socket.send(pickle.dumps(("kill", serial)))
        except OSError:
            self._lost = True
            if serial in self._handles:
                with suppress(ProcessLookupError):  # it has ended meanwhile
                    signal.pidfd_send_signal(self._handles[serial], signal.SIGKILL)

    def give_up(self) -> None:
        """Kill the server, which does not answer: it is stopped, or hangs in a fork.

        So nobody waits for it once more, and each process that it started is killed or ends with
        its socket.
        """
        self._lost = self._gave_up = True
        self._process.kill()
        with suppress(subprocess.TimeoutExpired):  # as long as it lives it would take requests
            self._process.wait(_GONE_TIMEOUT_S)

    def close(self, grace_s: float) -> None:
        """End the server; kill it if it takes too long."""
        self._socket.close()
        for handle in self._handles.values():
            os.close(handle)
        self._handles.clear()
        try:
            self._process.wait(grace_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _receive(self, timeout_s: float) -> bool:
        """Take one message; False if none came in time, or the server is gone."""
        if self._lost or not self._answers.poll(max(0.0, timeout_s) * 1000):
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
            self._alive.discard(serial)
            if serial in self._handles:
                os.close(self._handles.pop(serial))
        elif serial not in self._handles:
            with suppress(ProcessLookupError):  # it has ended already; the next answer says so
                self._handles[serial] = os.pidfd_open(pid)
        return True


class _Server:
    """The server's side."""

    def __init__(
        self, channel: socket.socket, grace_ms: int, run: Callable[[int, int, str], None]
    ) -> None:
        self._channel = channel
        self._grace_ms = grace_ms
        self._run = run
        self._children: dict[int, tuple[int, int]] = {}  # by pidfd: serial and pid
        self._poller = select.poll()
        self._poller.register(channel, select.POLLIN)

    def serve(self) -> None:
        """Serve until the driver's end closes; then wait for the children."""
        serving = True
        while serving:
            for fd, _ in self._poller.poll():
                if fd != self._channel.fileno():
                    self._reap(fd)
                else:
                    serving = self._take()
        self._end_children()

    def _end_children(self) -> None:
        """Wait for the children to end by themselves; kill those that do not in time."""
        self._poller.unregister(self._channel)
        clock = SystemClock()
        deadline_ns = clock.monotonic_ns() + self._grace_ms * 1_000_000
        while self._children and (left_ns := deadline_ns - clock.monotonic_ns()) > 0:
            for fd, _ in self._poller.poll(left_ns / 1e6):
                self._reap(fd)
        for pidfd in tuple(self._children):
            signal.pidfd_send_signal(
                pidfd, signal.SIGKILL
            )  # a zombie until it is reaped, so the pidfd is valid
            self._reap(pidfd)

    def _take(self) -> bool:
        """Carry out a request; return False if no more will come."""
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
        sys.stdout.flush()
        sys.stderr.flush()
        with stops_deferred():
            pid = os.fork()
            if pid == 0:
                self._become(connection, index, address)
        os.close(connection)
        pidfd = os.pidfd_open(pid)
        self._children[pidfd] = serial, pid
        self._poller.register(pidfd, select.POLLIN)
        self._tell(serial, pid, None)

    def _become(self, connection: int, index: int, address: str) -> None:
        """Become a member, and never return."""
        import numpy as np

        from ...transport.compiling import notice

        notice.silent = True  # the members of a job compile the same functions
        try:
            os.setpgid(0, 0)
            self._channel.close()
            for pidfd in self._children:
                os.close(pidfd)
            np.random.seed()  # noqa: NPY002  # the global state was forked, too
            self._run(connection, index, address)
        except BaseException:  # noqa: BLE001  # printed nowhere else
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(1)

    def _kill(self, serial: int) -> None:
        for pidfd, (of, _) in self._children.items():
            if of == serial:
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)

    def _reap(self, pidfd: int) -> None:
        """Wait for an ended child, and report its exit status."""
        serial, pid = self._children.pop(pidfd)
        self._poller.unregister(pidfd)
        os.close(pidfd)
        _, status = os.waitpid(pid, 0)
        self._tell(serial, pid, os.waitstatus_to_exitcode(status))

    def _tell(self, serial: int, pid: int, status: int | None) -> None:
        try:
            self._channel.send(pickle.dumps((serial, pid, status)))
        except OSError:
            pass  # the driver is gone: the next poll of the channel shows that


def _check_pidfds() -> None:
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        msg = (
            f"plain processes need pidfd_open (Linux 5.3), which is refused here"
            f" ({error.strerror}): allow it, run the job on Ray, or in this process by whale.run"
            " (--on inline)"
        )
        raise ResourceError(msg) from error


def child_environment() -> dict[str, str]:
    """Return the driver's environment, with whale_ray importable as it is here."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(whale_ray.__file__)))
    environment = dict(os.environ)
    path = [entry for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry]
    root = package if os.path.isdir(os.path.join(package, "whale_ray")) else None
    if root is not None and root not in path:
        environment["PYTHONPATH"] = os.pathsep.join([*path, root])
    return environment


def load() -> None:
    """Load what most jobs need: the engine, and operators with state, which load it when made."""
    from ...transport.kept_functions import load_kept_versions
    from ...transport.wire import codec
    from ..compiling_beside import compile_beside
    from ..envelope import installed_versions

    compile_beside()
    for name in _LOADED:
        import_module(name, __package__)
    for name in _COMPILED:
        load_kept_versions(import_module(name, __package__))
    codec.warm_up()
    installed_versions()


def main(run: Callable[[int, int, str], None] | None = None) -> None:
    """Load everything, then serve: fork processes that call `run`, by default members of a job."""
    leave_stops_to_the_controller()
    open_closed_streams()
    gc.disable()  # what is loaded stays: to look for garbage took a tenth of the time
    from .process_worker import run_member

    load()
    gc.freeze()  # so that collections in the children do not copy shared pages
    gc.enable()
    # Python 3.12 and later warn of a fork beside other threads. Those here are OpenBLAS' and
    # jemalloc's, and both libraries bring their locks into order around a fork.
    warnings.filterwarnings("ignore", ".*multi-threaded.*fork", DeprecationWarning)
    with socket.socket(fileno=int(sys.argv[1])) as channel:
        _Server(channel, int(sys.argv[2]), run or run_member).serve()


if __name__ == "__main__":
    main()
