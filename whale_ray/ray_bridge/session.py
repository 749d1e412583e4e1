"""Join a running Ray cluster, or start a local one; only a cluster started here is stopped.

A job gets the first of these clusters:

1. the one that this process is connected to already; it is neither reconfigured nor disconnected;
2. the one that `address` names ("auto": the one that runs on this machine);
3. the one that RAY_ADDRESS names, as inside `ray job submit`;
4. the one that `ray start` started on this machine, if it answers;
5. a new one, which ends with the last session that uses it, at the latest with this process.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..configs.errors import ResourceError, UsageError
from ..configs.extras import explain_lack
from ..transport import compiled_folder
from .addresses import resolve_address
from .excepthook import report_errors_under
from .failures import explain_failure
from .guard import refuse_while_importing
from .tokens import provide_token

if TYPE_CHECKING:
    import psutil

_log = logging.getLogger(__name__)

LOGICAL_CPUS_MIN = 4
"""The least number of logical processors of a cluster that whale-ray starts.

Workers in such a cluster reserve none, but each Spark executor reserves its cores until Spark
stops, and reading a DataFrame temporarily needs one more.
"""


class _Connection:
    """The connection of this process to Ray, if whale-ray opened it.

    Attributes:
        lock: held while connecting and disconnecting.
        holders: the number of sessions that use the connection.
        keepers: the number of `RayKeeper`s, which keep it open between its uses.
        started: whether whale-ray started that cluster.
        name: identifies the connection, since the user may have opened another one later.
        ended: set when the connection has been closed.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.holders = 0
        self.keepers = 0
        self.started = False
        self.name = ""
        self.ended = threading.Event()

    def is_ours(self) -> bool:
        """Return whether this process is connected to Ray by whale-ray."""
        import ray

        if not (self.holders or self.keepers) or not ray.is_initialized():
            return False
        return _name_of_connection() == self.name

    def close_if_unused(self) -> None:
        """Close the connection, and stop a cluster started for it, unless it is still used."""
        import ray

        if not (self.holders or self.keepers):
            ray.shutdown()
            self.ended.set()


def _name_of_connection() -> str:
    """Return a unique name: job ids alone are unique only within a cluster."""
    import ray

    node = ray._private.worker.global_worker.node  # None if this process is a Ray client
    session = getattr(node, "session_name", "")
    return f"{session} {ray.get_runtime_context().get_job_id()}"


_connection = _Connection()


@dataclass
class RaySession:
    """A use of a Ray cluster, which ends with `close` or at the end of a `with` block.

    Attributes:
        address: `host:port` of the cluster.
        started_here: whether whale-ray started this cluster, in this process.
        namespace: the default namespace of this process' actors.
        dashboard_url: the URL of Ray's dashboard; "" if there is none.
    """

    address: str
    started_here: bool
    namespace: str
    _connection_name: str = field(default="", repr=False)
    dashboard_url: str = ""

    @property
    def worker_cpus(self) -> float:
        """The processors that one worker actor reserves.

        0 in a cluster that whale-ray started, which no other program uses: idle workers sleep. 1 in
        any other cluster.
        """
        return 0.0 if self.started_here else 1.0

    def close(self) -> None:
        """End this use. The last one stops the cluster or disconnects. May be called twice."""
        name, self._connection_name = self._connection_name, ""
        if name:
            _release(name)

    def __enter__(self) -> RaySession:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


def connect_ray(
    address: str | None = None,
    *,
    num_cpus: int | None = None,
    environment: Mapping[str, str] | None = None,
    dashboard: bool = False,
    meanwhile: Callable[[], object] = lambda: None,
) -> RaySession:
    """Join a running Ray cluster, or start one; the top of this module says which.

    Args:
        address: `"auto"`, `"host:port"` of a running cluster, `"local"` for a new one in any case,
            or None.
        num_cpus: the logical processors of a new cluster; by default those of this machine, at
            least `LOGICAL_CPUS_MIN`.
        environment: additional environment variables of Ray's processes, such as JAVA_HOME; without
            effect if this process is connected already.
        dashboard: whether a new cluster has a dashboard, if the extra `dashboard` is installed; it
            takes a few seconds and some memory.
        meanwhile: starts other work while Ray starts; called as soon as this process' environment
            has the variables that a process needs to connect to that cluster.

    Raises:
        UsageError: the address is not valid, this process is connected to another cluster, or a
            worker imports the script that calls this.
        ResourceError: no Ray answers there, it has another version or refuses the token, or a new
            one cannot start.
    """
    import ray

    refuse_while_importing("whale-ray's connection to Ray")
    with _connection.lock:
        if ray.is_initialized():
            ours = _connection.is_ours()
            _check_same(address, started=ours and _connection.started)
            meanwhile()
        else:
            target = resolve_address(address)
            if target is None:
                _prepare_environment(environment or {})
                meanwhile()
                _start(num_cpus, dashboard or _connection.keepers > 0)
            else:
                meanwhile()
                _join(target, environment or {})
            report_errors_under(_connection.lock)
            _connection.holders = 0
            _connection.started = target is None
            _connection.name = _name_of_connection()
            ours = True
        _connection.holders += ours
        context = ray.get_runtime_context()
        return RaySession(
            address=str(context.gcs_address),
            started_here=ours and _connection.started,
            namespace=str(context.namespace),
            dashboard_url=_dashboard_url(),
            _connection_name=_connection.name if ours else "",
        )


def check_outlives_process(address: str | None) -> None:
    """Refuse a detached job if its cluster would end with this process; starts nothing.

    Args:
        address: as for `connect_ray`.

    Raises:
        UsageError: there is no running cluster to join, whale-ray started it in this process, or
            the address is not valid.
        ResourceError: no Ray answers there.
    """
    import ray

    with _connection.lock:
        if ray.is_initialized():
            ends = _connection.is_ours() and _connection.started
        else:
            ends = resolve_address(address) is None
    if ends:
        msg = (
            "a detached job needs a Ray that outlives this process; "
            "start one with `ray start --head`"
        )
        raise UsageError(msg)


def _check_same(address: str | None, *, started: bool) -> None:
    """Raise UsageError if this process is connected to another cluster than the requested one."""
    import ray

    if address in {None, "auto"} or (address == "local" and started):
        return
    connected = str(ray.get_runtime_context().gcs_address)
    if address == "local" or resolve_address(address) != connected:
        msg = (
            f"this process is connected to Ray at {connected}, not {address!r}; "
            "leave out the address, or call ray.shutdown() first"
        )
        raise UsageError(msg)


def _can_have_dashboard() -> bool:
    """Return whether the packages of Ray's dashboard are installed; warn if they are not."""
    lack = explain_lack("dashboard", "Ray's dashboard")
    if lack:
        _log.warning("%s; Ray starts without it", lack)
    return not lack


def _dashboard_url() -> str:
    import ray

    url = ray._private.worker.get_dashboard_url()
    return f"http://{url}" if url else ""


def _prepare_environment(environment: Mapping[str, str]) -> None:
    """Set the environment variables that the processes of a new cluster inherit."""
    os.environ.update(environment)
    provide_token()
    if compiled_folder.is_needed():  # once for all of Ray's processes
        compiled_folder.choose_folder()


def _start(num_cpus: int | None, dashboard: bool) -> None:
    cpus = num_cpus or max(os.cpu_count() or 1, LOGICAL_CPUS_MIN)
    _connection.ended.set()  # of an earlier connection, which the user has shut down
    _connection.ended = ended = threading.Event()
    _in_permanent_thread(
        lambda: _initialize(
            "a new Ray",
            address="local",
            num_cpus=cpus,
            include_dashboard=dashboard and _can_have_dashboard(),
        ),
        ended,
    )


def _in_permanent_thread(start: Callable[[], None], ended: threading.Event) -> None:
    """Call `start` in a thread that runs until `ended` is set.

    Ray requests that Linux kills its processes when the thread that started them ends. The main
    thread can call `start` itself; for any other thread a new thread does, which then waits.
    """
    if threading.current_thread() is threading.main_thread():
        start()
        return
    started: Future[None] = Future()

    def run() -> None:
        try:
            start()
        except BaseException as error:  # noqa: BLE001  # raised again in the calling thread
            started.set_exception(error)
        else:
            started.set_result(None)
            ended.wait()

    threading.Thread(target=run, name="Ray's parent", daemon=True).start()
    started.result()


def _join(address: str, environment: Mapping[str, str]) -> None:
    options: dict[str, Any] = {"address": address}
    if environment:
        there = dict(environment)
        if "PATH" in there:  # Ray's processes keep their own PATH, after the first folder
            there["PATH"] = there["PATH"].partition(os.pathsep)[0] + os.pathsep + "${PATH}"
        options["runtime_env"] = {"env_vars": there}
    _initialize(f"the Ray at {address}", **options)


def _initialize(what: str, **options: Any) -> None:
    """Call `ray.init` without output; a failure is raised as ResourceError with one line."""
    import psutil
    import ray

    before = set(psutil.Process().children())
    try:
        with _keeping_sigterm_handler():
            ray.init(log_to_driver=False, logging_level=logging.ERROR, **options)
    except BaseException as error:
        # Ray ends the process if it cannot start; by its handler of SIGTERM it is asked to.
        is_terminated = isinstance(error, SystemExit) and error.code == signal.SIGTERM
        is_interrupted = is_terminated or not isinstance(error, Exception | SystemExit)
        # Ray ends the raylet, whose agents are then no more found among our descendants.
        started = _of_cluster(before) if is_interrupted else set()
        ray.shutdown()
        if is_interrupted:
            _kill_half_started(started | _of_cluster(before))
            raise
        raise ResourceError(explain_failure(what, error)) from error


@contextmanager
def _keeping_sigterm_handler() -> Iterator[None]:
    """Prevent `ray.init` from replacing an existing handler of SIGTERM.

    Ray's own handlers end the process without stopping what else it has started. The one that its
    C++ library installs beside Python's prints a trace, and aborts the process after 3 s.
    """
    import ray

    utils: Any = ray._private.utils
    take, kept = utils.set_sigterm_handler, signal.getsignal(signal.SIGTERM)
    if kept in (signal.SIG_DFL, None):
        yield
        return
    utils.set_sigterm_handler = lambda _handler: None
    try:
        yield
    finally:
        utils.set_sigterm_handler = take
        if threading.current_thread() is threading.main_thread():  # no other one may
            signal.signal(signal.SIGTERM, kept)


def _of_cluster(before: set[psutil.Process]) -> set[psutil.Process]:
    """Return Ray's processes that are our children since then, and all that these have started."""
    import psutil
    import ray

    home, found = os.path.dirname(ray.__file__), set()
    for child in set(psutil.Process().children()) - before:
        with suppress(psutil.Error):  # the process has ended
            if any(word.startswith(home) for word in child.cmdline()):
                found |= {child, *child.children(recursive=True)}
    return found


def _kill_half_started(processes: set[psutil.Process]) -> None:
    """Kill the processes of a cluster whose start was interrupted: Ray has not recorded them yet.

    They would end with this process, but children that they are just starting would not.
    """
    import psutil

    for process in processes:
        with suppress(psutil.Error):
            process.kill()


def _release(name: str) -> None:
    """End one use of the connection of that name, unless the connection is closed already."""
    with _connection.lock:
        if name == _connection.name and _connection.is_ours():
            _connection.holders -= 1
            _connection.close_if_unused()


class RayKeeper:
    """Keeps this process' connection to Ray open until `close`, also between its uses.

    Without a keeper the connection is closed after its last use. A keeper itself starts nothing.
    """

    def __init__(self) -> None:
        self._closed = False
        with _connection.lock:
            _connection.keepers += 1

    def close(self) -> None:
        """Close the connection now or after its last use. May be called twice, in any thread."""
        with _connection.lock:
            if self._closed:
                return
            self._closed = True
            is_ours = _connection.is_ours()
            _connection.keepers -= 1
            if is_ours:
                _connection.close_if_unused()
