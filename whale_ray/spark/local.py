"""Spark in local mode, for jobs that run without Ray."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..configs.errors import ResourceError
from ..configs.extras import require_extra
from ..configs.settings import SparkSettings
from .driver import (
    check_no_session,
    configuration,
    drop_broken_updates,
    end_java,
    make_active,
    session_of_process,
    why_not_started,
    without_py4j_logs,
)
from .java import use_java
from .java_errors import kept_readable
from .java_processes import start_apart, stopped_afterwards

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@contextmanager
def spark_locally(app_name: str, settings: SparkSettings | None = None) -> Iterator[SparkSession]:
    """Start Spark on this machine's cores, in UTC; stop it and its Java at the end of the block.

    An existing session of this process is used as it is, and not stopped.

    Raises:
        UsageError: an earlier session left its Java process.
        ResourceError: Spark, an extra, is not installed, there is no Java, or it does not start.
    """
    require_extra("spark", "a Spark session")
    from pyspark.sql import SparkSession

    running = session_of_process()
    if running is not None:
        yield running
        return
    use_java()
    check_no_session()
    values = configuration(settings or SparkSettings())
    logs = f"-Dlog4j2.configurationFile={values['spark.log4j.config.file.name']}"
    values["spark.driver.extraJavaOptions"] += f" {logs}"
    values |= {"spark.driver.host": "localhost", "spark.driver.bindAddress": "127.0.0.1"}
    builder = SparkSession.builder.master("local[*]").appName(app_name).config(map=values)

    def start() -> SparkSession:
        session = builder.getOrCreate()
        session.sparkContext.setLogLevel("FATAL")
        return session

    def stop() -> None:
        try:
            session.stop()
        finally:
            end_java()

    with without_py4j_logs():
        try:
            session = start_apart(start)
        except BaseException as error:  # pyspark's, py4j's or the system's
            end_java()
            if not isinstance(error, Exception):
                raise
            raise ResourceError(why_not_started("Spark did not start here", error)) from error
        finally:
            builder._options.clear()  # pyspark would pass them on to the next session
        with stopped_afterwards(stop, stop), kept_readable():
            drop_broken_updates(session)
            make_active(session)
            yield session


def drop_and_observe(rows: DataFrame, metrics: Mapping[str, str]) -> dict[str, Any]:
    """Have Spark make rows with all their columns, and drop them; return metrics of them.

    Args:
        rows: to make.
        metrics: name → aggregate in SQL, computed as the rows go by.
    """
    from pyspark.sql import Observation
    from pyspark.sql.functions import expr

    found = Observation()
    observed = rows.observe(found, *(expr(sql).alias(name) for name, sql in metrics.items()))
    observed.write.format("noop").mode("overwrite").save()
    return found.get
