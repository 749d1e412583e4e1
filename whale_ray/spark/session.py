"""Spark sessions: a new one on Ray, or an existing one of the user's.

`start_session` starts Spark on Ray through RayDP, without output and with the Java flags that it
needs. `adopt_session` checks an existing session and returns how its rows can be transferred:
through Ray's object store if it runs on Ray, else through Parquet files.
"""

from __future__ import annotations

import os
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from enum import Enum
from typing import TYPE_CHECKING, Any

from ..configs.errors import ResourceError, UsageError
from ..configs.extras import require_extra
from ..configs.settings import SparkSettings
from ..ray_bridge.folders import new_folder
from ..ray_bridge.guard import refuse_while_importing
from ..ray_bridge.session import RaySession, connect_ray
from ..transport.clock import Clock, SystemClock
from .class_archive import with_archive
from .driver import (
    NO_JAVA_ON_NODES,
    check_no_session,
    configuration,
    drop_broken_updates,
    end_java,
    has_stopped,
    keeping_files_in,
    make_active,
    session_of_process,
    start_java,
    why_not_started,
    without_py4j_logs,
)
from .java import (
    DRIVER_OPTION_KEY,
    JAVA_OPTION_KEYS,
    java_environment,
    unopened_packages,
    use_java,
)
from .java_errors import kept_readable
from .java_processes import start_apart, starting_apart, stopped_afterwards

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RAYDP_MASTER_PREFIX = "ray://"

_EXECUTORS_TIMEOUT_NS = 120_000_000_000
_PROCESSORS_TIMEOUT_NS = 10_000_000_000
_POLL_NS = 50_000_000

_started: weakref.WeakSet[SparkSession] = weakref.WeakSet()
"""The sessions that `start_session` started."""


class RowTransfer(Enum):
    """By what means rows of a Spark session get to the workers."""

    OBJECTS = "through Ray's object store"
    FILES = "through Parquet files"


@contextmanager
def spark_on_ray(
    app_name: str, settings: SparkSettings | None = None, address: str | None = None
) -> Iterator[SparkSession]:
    """Join or start Ray and start Spark on it; stop what was started at the end of the block.

    An existing session of this process is used as it is, and not stopped.

    Args:
        app_name: as for `start_session`.
        settings: executors, cores, memory.
        address: the Ray cluster, as for `connect_ray`.

    Raises:
        UsageError: as for `start_session` and `connect_ray`.
        ResourceError: as for `start_session` and `connect_ray`.
    """
    require_extra("spark", "a Spark session on Ray")
    running = session_of_process()
    if running is not None:
        adopt_session(running)
        yield running
        return
    settings = settings or SparkSettings()
    environment = java_environment(use_java())
    check_no_session()
    values = _values(settings)
    with without_py4j_logs(), ExitStack() as stack:
        with ExitStack() as starting:
            ray = connect_ray(
                address,
                environment=environment,
                meanwhile=lambda: starting.enter_context(_starting_java(values)),
            )
            ray_session = stack.enter_context(ray)
            session = _start(app_name, settings, ray_session, values, SystemClock())
        with stopped_afterwards(lambda: stop_session(session), _abandon), kept_readable():
            yield session


def start_session(
    app_name: str,
    settings: SparkSettings,
    ray_session: RaySession,
) -> SparkSession:
    """Start Spark on Ray and return its session, in UTC; end it with `stop_session`.

    Each executor is a Ray actor that reserves its cores until the session stops.

    Args:
        app_name: Spark's name of the application; unique in the Ray cluster.
        settings: executors, cores, memory.
        ray_session: the cluster that this process is connected to.

    Raises:
        UsageError: this process has a Spark session already, or a Java process without the flags.
        ResourceError: Spark, an extra, is not installed, there is no Java, or Ray has too few
            processors free.
    """
    require_extra("spark", "a Spark session on Ray")
    refuse_while_importing("a Spark session")
    use_java()
    check_no_session()
    values = _values(settings)
    with _starting_java(values):
        return _start(app_name, settings, ray_session, values, SystemClock())


def _values(settings: SparkSettings) -> dict[str, str]:
    values = configuration(settings)
    return with_archive(values) if settings.keep_classes else values


@contextmanager
def _starting_java(values: Mapping[str, str]) -> Iterator[None]:
    """Start this process' Java while the block runs; end it if an error leaves the block.

    The block may create the session: pyspark waits, by a lock, until Java has started.
    """
    try:
        with starting_apart(lambda: start_java(values)):
            yield
    except BaseException:
        end_java()
        raise


def _start(
    app_name: str,
    settings: SparkSettings,
    ray_session: RaySession,
    values: Mapping[str, str],
    clock: Clock,
) -> SparkSession:
    """See `start_session`; `values` are Spark's own settings."""
    _check_processors(settings, ray_session, clock)
    _check_nodes(ray_session)
    import raydp

    cores, executors = settings.executor_cores, settings.executors
    if ray_session.started_here:  # other nodes may not have this process' folder
        apart = set(JAVA_OPTION_KEYS) - {DRIVER_OPTION_KEY}
        folder = new_folder("spark")
        _check_folder(folder)
        values = keeping_files_in(folder, values, apart)

    def start() -> tuple[SparkSession, bool]:
        session: SparkSession = raydp.init_spark(
            app_name, executors, cores, f"{settings.executor_memory_mb}m", configs=dict(values)
        )
        # RayDP has set its own log configuration in Spark's driver. Failures raise exceptions.
        session.sparkContext.setLogLevel("FATAL")
        return session, _wait(lambda: _has_executors(session), _EXECUTORS_TIMEOUT_NS, clock)

    try:
        session, has_executors = start_apart(start)
    except BaseException as error:  # Ray's, py4j's or Java's
        why = ""
        if isinstance(error, Exception):  # the text of Java's errors is readable only now
            why = why_not_started("Spark did not start on Ray", error)
        _abandon()
        if not why:
            raise
        raise ResourceError(why) from error
    _started.add(session)
    drop_broken_updates(session)
    make_active(session)
    if not has_executors:
        stop_session(session, clock)
        msg = (
            f"none of Spark's executors came up within {_EXECUTORS_TIMEOUT_NS // 10**9} s; "
            f"{NO_JAVA_ON_NODES}"
        )
        raise ResourceError(msg)
    return session


def _check_folder(path: str) -> None:
    """Raise ResourceError for a path that RayDP would give to executors in pieces."""
    if len(path.split()) > 1:
        msg = (
            f"Spark's executors on Ray take no temporary folder with a space in its path: {path}; "
            "name another in the environment variable TMPDIR"
        )
        raise ResourceError(msg)


def stop_session(session: SparkSession, clock: Clock | None = None) -> None:
    """Stop a session that `start_session` started, and wait until its processors are free.

    Nothing is done for any other session, or one that has stopped already. DataFrames of the
    session, including those made from results, can no longer be read.
    """
    if session not in _started:
        return
    _started.discard(session)
    if has_stopped(session):
        return
    import raydp

    enough = _free_processors() + _held_processors(session)
    try:
        raydp.stop_spark()
    finally:
        end_java()
    _wait(lambda: _free_processors() >= enough, _PROCESSORS_TIMEOUT_NS, clock or SystemClock())


def _abandon() -> None:
    """Clean up after a session that did not start, or whose Java has ended."""
    import raydp

    os.environ["RAY_IGNORE_UNHANDLED_ERRORS"] = "1"  # errors of RayDP's master, never awaited
    with suppress(Exception), warnings.catch_warnings(action="ignore"):
        raydp.stop_spark()
    end_java()


def _wait(done: Callable[[], bool], timeout_ns: int, clock: Clock) -> bool:
    """Poll `done` until it returns True or the time is over; return its last result."""
    until_ns = clock.monotonic_ns() + timeout_ns
    while not done():
        if clock.monotonic_ns() >= until_ns:
            return False
        clock.sleep_ns(_POLL_NS)
    return True


def _has_executors(session: SparkSession) -> bool:
    """Return whether an executor runs; without one a query would wait for ever."""
    context: Any = session.sparkContext
    return bool(context._jsc.sc().getExecutorMemoryStatus().size() > 1)  # one is the driver


def adopt_session(session: SparkSession) -> RowTransfer:
    """Check that rows of a user's session can be read, and return by what means.

    The session is not changed.

    Raises:
        UsageError: the session has stopped, is a Spark Connect session, or runs on Ray without the
            Java flags, so that reading from it would crash RayDP.
    """
    if not hasattr(session, "sparkContext") or "connect" in type(session).__module__:
        msg = (
            "this is a Spark Connect session, whose data this process cannot reach; use a classic "
            "SparkSession, or write Parquet and use sources.parquet"
        )
        raise UsageError(msg)
    if has_stopped(session):
        msg = "this Spark session has stopped; make a new one, and its DataFrames anew"
        raise UsageError(msg)
    if not str(session.sparkContext.master).startswith(RAYDP_MASTER_PREFIX):
        return RowTransfer.FILES
    _check_flags(session)
    return RowTransfer.OBJECTS


def check_same_host(session: SparkSession, action: str) -> None:
    """Raise UsageError if executors run on other hosts, which cannot read this host's files."""
    context: Any = session.sparkContext
    places = str(context._jsc.sc().getExecutorMemoryStatus().keySet().mkString(","))
    here = {str(context.getConf().get("spark.driver.host", "")), "localhost", "127.0.0.1"}
    elsewhere = sorted({place.rpartition(":")[0] for place in places.split(",")} - here)
    if elsewhere:
        msg = (
            f"{action} goes through local files, and this Spark has executors on other hosts, such "
            f"as {elsewhere[0]}; pass Parquet on storage that all hosts see instead"
        )
        raise UsageError(msg)


def _check_flags(session: SparkSession) -> None:
    """Raise UsageError if a Java process of Spark on Ray was started without the flags."""
    java: Any = session.sparkContext._jvm
    if _java_version(java) < 16:  # earlier ones open their packages by themselves
        return
    configured = session.sparkContext.getConf()
    everywhere = os.environ.get("JDK_JAVA_OPTIONS", "")
    bean = java.java.lang.management.ManagementFactory.getRuntimeMXBean()
    for key in JAVA_OPTION_KEYS:
        options = f"{configured.get(key, '')} {everywhere}"
        if key == DRIVER_OPTION_KEY:  # pyspark may have kept the Java of an earlier session
            options = " ".join(bean.getInputArguments())
        closed = unopened_packages(options)
        if closed:
            msg = (
                f"this Spark session was made without {key} for {len(closed)} Java packages, such "
                f"as {closed[0]}, and RayDP would die reading from it; in a new Python process, "
                'make it with " ".join(whale_ray.spark.JAVA_OPTIONS) in '
                f"{', '.join(JAVA_OPTION_KEYS)}"
            )
            raise UsageError(msg)


def _java_version(java: Any) -> int:
    version = str(java.java.lang.System.getProperty("java.specification.version"))
    return int(version.removeprefix("1."))


def _check_nodes(ray_session: RaySession) -> None:
    """Raise ResourceError if a node was started without java: Spark would crash its raylet.

    A raylet that found no java when it started crashes at its first Java process.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    ask = ray.remote(num_cpus=0)(_raylet_takes_java)
    nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
    places = [NodeAffinitySchedulingStrategy(node, soft=False) for node in nodes]
    if not all(ray.get([ask.options(scheduling_strategy=place).remote() for place in places])):
        msg = (
            f"Spark cannot run on the Ray at {ray_session.address}, which was started without "
            f"java; {NO_JAVA_ON_NODES}"
        )
        raise ResourceError(msg)


def _raylet_takes_java() -> bool:
    """Return, in a Ray task, whether the raylet of its node was started with a Java command."""
    import psutil

    raylet = psutil.Process().parent()
    return raylet is None or "--java_worker_command=" not in raylet.cmdline()


def _check_processors(settings: SparkSettings, ray_session: RaySession, clock: Clock) -> None:
    import ray

    wanted = settings.executors * settings.executor_cores + 1
    # Processors of an earlier job or session become free a moment after its end.
    if _wait(lambda: _free_processors() >= wanted, _PROCESSORS_TIMEOUT_NS, clock):
        return
    free = _free_processors()
    total = ray.cluster_resources().get("CPU", 0.0)
    remedy = "connect_ray(num_cpus=…)" if ray_session.started_here else "a larger Ray"
    msg = (
        f"Spark wants {wanted} processors of Ray ({settings.executors} executors with "
        f"{settings.executor_cores} cores, and 1 to hand rows over), but {free:g} of {total:g} are "
        f"free; lower spark.executors or spark.executor_cores, free some, or use {remedy}"
    )
    raise ResourceError(msg)


def _held_processors(session: SparkSession) -> float:
    configured = session.sparkContext.getConf()
    executors = configured.get("spark.executor.instances", "0")
    return float(executors or 0) * float(configured.get("spark.executor.cores", "1") or 1)


def _free_processors() -> float:
    import ray

    return float(ray.available_resources().get("CPU", 0.0))
