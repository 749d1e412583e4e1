"""Structured Streaming: run a topology per micro-batch.

Spark passes every micro-batch to a function as an ordinary DataFrame; the topology reads it, and
its results are DataFrames again. Spark repeats a failed micro-batch with the same number; use that
number as a key where outputs must not be duplicated.
"""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..ray_bridge.session import RayKeeper
from ..transport.clock import Clock, SystemClock
from .source import spark_source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from ..api.job import Job
    from ..api.topology import Topology
    from ..operators.sources.base import Source

Build = Callable[["Source", int], "Topology"]
Receive = Callable[["Job", int], None]

_QUERY_ID = "sql.streaming.queryId"
_POLL_NS = 500_000_000
_FAILED_CALLS_MAX = 6

_log = logging.getLogger(__name__)


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

    Micro-batches without rows, such as the first of a rate source, are skipped. The connection to
    Ray stays open until the query ends. The state of operators does not last: every micro-batch
    begins with new instances, and a warning is logged at the first one.

    Args:
        build: (source, number) → the topology; the source reads the micro-batch of that number.
        receive: (job, number) → None; called with the finished job.
        submit: the function that starts the job; by default `whale.submit`. `whale.run` needs no
            workers.
    """
    queries = _Queries()

    def run(frame: DataFrame, number: int) -> None:
        if frame.isEmpty():
            return
        queries.begin(frame)
        topology = build(spark_source(frame), number)
        queries.warn_of_state(topology)
        job = (submit or _submit)(topology)
        job.wait()
        if receive is not None:
            receive(job, number)

    return run


def _submit(topology: Topology) -> Any:
    from ..api.submission import submit

    return submit(topology)


class _Queries:
    """The running streaming queries of a function, and the Ray connection that each keeps open."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[str] = set()
        self._warned = False

    def begin(self, frame: DataFrame) -> None:
        """Keep Ray connected from the query's first micro-batch until the query ends."""
        session: Any = frame.sparkSession
        running_id = str(session.sparkContext.getLocalProperty(_QUERY_ID))
        with self._lock:
            if running_id in self._running:
                return
            self._running.add(running_id)
        keeper = RayKeeper()
        atexit.register(keeper.close)
        names = (keeper, session, running_id)
        threading.Thread(target=self._watch, args=names, name="query's end", daemon=True).start()

    def _watch(self, keeper: RayKeeper, session: Any, running_id: str) -> None:
        """Close the keeper when the query has ended or failed."""
        try:
            await_end(session, running_id, SystemClock())
        finally:
            with self._lock:
                self._running.discard(running_id)
            keeper.close()
            atexit.unregister(keeper.close)

    def warn_of_state(self, topology: Topology) -> None:
        """Log once that the state of operators does not outlive a micro-batch."""
        nodes = topology.logical_plan().nodes
        stateful = [repr(node.id) for node in nodes if node.kind.is_stateful]
        if stateful and not self._warned:
            self._warned = True
            _log.warning(
                "topology %r: what %s keeps does not outlive a micro-batch: the next one begins "
                "with new instances",
                topology.name,
                ", ".join(stateful),
            )


def await_end(session: Any, running_id: str, clock: Clock) -> None:
    """Return when a query has ended or failed, or Java with it.

    Py4J answers a call with an error without a reason now and then, though Java is well; seen while
    a first micro-batch was prepared. So only several in a row tell that Java has ended.
    """
    failed = 0
    while failed < _FAILED_CALLS_MAX:
        try:
            uuid = session._jvm.java.util.UUID.fromString(running_id)
            # The session of a micro-batch is a clone; this map has the queries of all sessions.
            if not session._jsparkSession.sharedState().activeStreamingQueries().containsKey(uuid):
                return
            failed = 0
        except Exception as error:  # noqa: BLE001  # py4j's
            failed += 1
            _log.debug("whether query %s runs is not known: %s", running_id, error)
        clock.sleep_ns(_POLL_NS)
