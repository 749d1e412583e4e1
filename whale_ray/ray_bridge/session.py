"""Joins a running Ray, or starts a quiet local one; stops only what was started here.

Which Ray a job gets, first match:

1. the one that this process is connected to already: neither reconfigured nor disconnected;
2. the one that `address` names ("auto": the one that runs on this machine);
3. the one that RAY_ADDRESS names, as inside `ray job submit`;
4. the one that `ray start` left running on this machine, if it answers;
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
from .failures import explain_failure
from .guard import refuse_while_importing
from .tokens import provide_token

if TYPE_CHECKING:
    import psutil

_log = logging.getLogger(__name__)

LOGICAL_CPUS_MIN = 4
"""A Ray of our own counts at least so many processors.

Workers of such a Ray reserve none, but each Spark executor keeps as many as it has cores until
Spark stops, and reading a DataFrame needs one more for a moment.
"""


class _Connection:
    """This process' connection to Ray, as far as whale-ray made it.

    Attributes:
        lock: held while connecting and disconnecting.
        holders: sessions that use the connection.
        keepers: those who want it to stay between its uses.
        started: whale-ray started that Ray.
        name: of the connection, to know it from one that the user made since.
        ended: set when Ray has been let go.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.holders = 0
        self.keepers = 0
        self.started = False
        self.name = ""
        self.ended = threading.Event()

    def is_ours(self) -> bool:
        """Tell whether this process is connected to Ray, and by whale-ray."""
        import ray

        if not (self.holders or self.keepers) or not ray.is_initialized():
            return False
        return _name_of_connection() == self.name

    def let_go(self) -> None:
        """End the connection, and the Ray that was started for it, unless somebody wants it."""
        import ray

        if not (self.holders or self.keepers):
            ray.shutdown()
            self.ended.set()


def _name_of_connection() -> str:
    """Return what no other connection is called: jobs are numbered anew by every Ray."""
    import ray

    node = ray._private.worker.global_worker.node  # None if this process is a Ray client
    session = getattr(node, "session_name", "")
    return f"{session} {ray.get_runtime_context().get_job_id()}"


_connection = _Connection()


@dataclass
class RaySession:
    """A use of Ray, ended by `close` or by leaving its `with` block.

    Attributes:
        address: `host:port` of the cluster.
        started_here: whale-ray started this Ray, in this process.
        namespace: that of this process' actors, unless they name another.
        dashboard_url: of Ray's dashboard, "" if it has none.
    """

    address: str
    started_here: bool
    namespace: str
    _connection_name: str = field(default="", repr=False)
    dashboard_url: str = ""

    @property
    def worker_cpus(self) -> float:
        """Processors that one worker actor reserves.

        None on a Ray of our own, which nobody shares: its workers sleep on doorbells when idle.
        One on a Ray that others use too.
        """
        return 0.0 if self.started_here else 1.0

    def close(self) -> None:
        """End this use; Ray stops, or is left, with its last use here. May be called twice."""
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
    namespace: str | None = None,
    environment: Mapping[str, str] | None = None,
    dashboard: bool = False,
    meanwhile: Callable[[], object] = lambda: None,
) -> RaySession:
    """Join a running Ray, or start one; see the top of this module for which.

    Args:
        address: `"auto"`, `"host:port"` of a running Ray, `"local"` for a new one in any case, or
            None.
        num_cpus: logical processors of a new Ray; by default those of this machine, at least
            `LOGICAL_CPUS_MIN`.
        namespace: of this process' actors, one of its own if left out: RayDP gives its actors
            plain names, so two Sparks in one namespace would meet. A process that is connected
            already keeps what it has.
        environment: variables that Ray's processes need beside those that they have, such as
            JAVA_HOME; without effect if this process is connected already.
        dashboard: a new Ray has one, if the extra `dashboard` is installed; it takes a few seconds
            and some memory.
        meanwhile: begins what goes on while Ray starts; called as soon as this process' environment
            has all that a process needs in order to talk to that Ray.

    Raises:
        UsageError: the address is not one, or this process is connected to another Ray; or a
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
                _start(num_cpus, namespace, dashboard or _connection.keepers > 0)
            else:
                meanwhile()
                _join(target, namespace, environment or {})
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
    """Refuse a detached job where its Ray would end with this process; starts nothing.

    Args:
        address: as for `connect_ray`.

    Raises:
        UsageError: no Ray runs there that could be joined, or whale-ray started it here; or the
            address is not one.
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
    """Raise UsageError if this process is connected to another Ray than the one asked for."""
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
    """Tell whether the packages of Ray's dashboard are installed; warn if they are not."""
    lack = explain_lack("dashboard", "Ray's dashboard")
    if lack:
        _log.warning("%s; Ray starts without it", lack)
    return not lack


def _dashboard_url() -> str:
    import ray

    url = ray._private.worker.get_dashboard_url()
    return f"http://{url}" if url else ""


def _prepare_environment(environment: Mapping[str, str]) -> None:
    """Set what a new Ray's processes inherit."""
    os.environ.update(environment)
    provide_token()
    if compiled_folder.is_needed():  # once for all of Ray's processes
        compiled_folder.choose_folder()


def _start(num_cpus: int | None, namespace: str | None, dashboard: bool) -> None:
    cpus = num_cpus or max(os.cpu_count() or 1, LOGICAL_CPUS_MIN)
    _connection.ended.set()  # of one that the user has shut down
    _connection.ended = ended = threading.Event()
    _in_lasting_thread(
        lambda: _initialize(
            "a new Ray",
            address="local",
            num_cpus=cpus,
            namespace=namespace,
            include_dashboard=dashboard and _can_have_dashboard(),
        ),
        ended,
    )


def _in_lasting_thread(start: Callable[[], None], ended: threading.Event) -> None:
    """Call what starts processes that Linux kills when the thread ends that has started them.

    Ray asks for that. The main thread lasts; in the place of another, one does that waits until
    Ray has `ended`.
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


def _join(address: str, namespace: str | None, environment: Mapping[str, str]) -> None:
    options: dict[str, Any] = {"address": address, "namespace": namespace}
    if environment:
        there = dict(environment)
        if "PATH" in there:  # Ray's processes keep their own, behind the folder that comes first
            there["PATH"] = there["PATH"].partition(os.pathsep)[0] + os.pathsep + "${PATH}"
        options["runtime_env"] = {"env_vars": there}
    _initialize(f"the Ray at {address}", **options)


def _initialize(what: str, **options: Any) -> None:
    """Call `ray.init` so that it stays silent, and say in one line why it failed."""
    import psutil
    import ray

    before = set(psutil.Process().children())
    try:
        with _sigterm_left_alone():
            ray.init(log_to_driver=False, logging_level=logging.ERROR, **options)
    except BaseException as error:
        ray.shutdown()
        if not isinstance(error, Exception | SystemExit):
            _kill_half_started(before)
            raise
        raise ResourceError(explain_failure(what, error)) from error


@contextmanager
def _sigterm_left_alone() -> Iterator[None]:
    """Keep `ray.init` from taking SIGTERM where somebody has a handler for it, also meanwhile.

    Ray's own handlers end the process, whatever else has been started.
    """
    import ray

    utils: Any = ray._private.utils
    take = utils.set_sigterm_handler
    if signal.getsignal(signal.SIGTERM) not in (signal.SIG_DFL, None):
        utils.set_sigterm_handler = lambda _handler: None
    try:
        yield
    finally:
        utils.set_sigterm_handler = take


def _kill_half_started(before: set[psutil.Process]) -> None:
    """Kill the processes of a Ray whose start was interrupted: it does not know them yet.

    They would end with this one, but for their own children that are just starting.
    """
    import psutil
    import ray

    home = os.path.dirname(ray.__file__)
    for child in set(psutil.Process().children()) - before:
        with suppress(psutil.Error):  # it has ended
            if any(word.startswith(home) for word in child.cmdline()):
                for process in (*child.children(recursive=True), child):
                    process.kill()


def _release(name: str) -> None:
    """End a use of the connection of that name, unless it has ended already."""
    with _connection.lock:
        if name == _connection.name and _connection.is_ours():
            _connection.holders -= 1
            _connection.let_go()


class RayKeeper:
    """Keeps a Ray that whale-ray starts or joins, here and from now on, until `close`.

    Without a keeper it goes with its last use. Nothing is started by this.
    """

    def __init__(self) -> None:
        self._closed = False
        with _connection.lock:
            _connection.keepers += 1

    def close(self) -> None:
        """Let Ray go, now or with its last use. May be called twice, from any thread."""
        with _connection.lock:
            if self._closed:
                return
            self._closed = True
            may_go = _connection.is_ours()
            _connection.keepers -= 1
            if may_go:
                _connection.let_go()
