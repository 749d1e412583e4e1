"""Structured Streaming in and out: a topology per micro-batch.

Spark hands every micro-batch to a function as an ordinary DataFrame; the topology reads it and its
results are DataFrames again. Spark repeats a micro-batch that failed, with the same number, so
outputs that must not double are to be keyed by that number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .source import spark_source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from ..operators.sources.base import Source
    from ..runtime.job import Job
    from ..topology import Topology

Build = Callable[["Source", int], "Topology"]
Receive = Callable[["Job", int], None]


def foreach_batch(
    build: Build,
    receive: Receive | None = None,
    *,
    submit: Callable[[Topology], Job] | None = None,
) -> Callable[[DataFrame, int], None]:
    """Return a function for `DataStreamWriter.foreachBatch` that runs a topology per micro-batch.

    ::

        def build(rows, number):
            topology = whale.Topology("fares")
            topology.source(rows, id="rows").sink(whale.sinks.spark(), id="out")
            return topology

        def receive(job, number):
            job.results("out").to_spark().write.mode("overwrite").parquet(f"fares/{number}")

        stream.writeStream.foreachBatch(foreach_batch(build, receive)).start()

    Micro-batches without rows, such as the first of a rate source, are passed over.

    Args:
        build: makes the topology from a source over the micro-batch and the batch's number.
        receive: gets the finished job and the number.
        submit: how to start the job, `whale.submit` unless given; `whale.run` needs no workers.
    """

    def run(frame: DataFrame, number: int) -> None:
        if frame.isEmpty():
            return
        job = (submit or _submit)(build(spark_source(frame), number))
        job.wait()
        if receive is not None:
            receive(job, number)

    return run


def _submit(topology: Topology) -> Any:
    from ..runtime.api import submit

    return submit(topology)
