"""Drive a source or a sink without a topology, as a worker would."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ..operators.process import InstanceContext
from ..transport.clock import VirtualClock

if TYPE_CHECKING:
    from ..operators.sinks.base import Sink, SinkResult
    from ..operators.sources.base import Source
    from ..transport.clock import Clock
    from ..transport.wire.batch import Batch

_TOKEN = "test"


def instance_context(
    instance: int = 0,
    parallelism: int = 1,
    *,
    operator_id: str = "operator",
    attempt: int = 0,
    clock: Clock | None = None,
) -> InstanceContext:
    """Return a context for `open`; by default with a `VirtualClock`."""
    return InstanceContext(
        job="test",
        operator_id=operator_id,
        instance=instance,
        instances=(instance,),
        parallelism=parallelism,
        attempt=attempt,
        clock=clock or VirtualClock(),
    )


def read_all(
    source: Source, instance: int = 0, parallelism: int = 1, *, max_rows: int = 8192
) -> Iterator[Batch]:
    """Yield one instance's batches to the end of the input; waiting advances a virtual clock.

    Args:
        source: the source to read; with an unbounded one the iteration does not end.
        instance: the number of the instance, from 0.
        parallelism: the number of instances that share the input.
        max_rows: the most rows per batch.
    """
    clock = VirtualClock()
    reader = source.open(instance_context(instance, parallelism, clock=clock))
    try:
        while not reader.finished:
            batch = reader.read(max_rows)
            if batch is not None:
                yield batch
            elif not reader.finished:
                ready_ns = reader.next_ready_ns()
                if ready_ns is not None:
                    clock.sleep_ns(ready_ns - clock.monotonic_ns())
    finally:
        reader.close()


def write_all(sink: Sink, *batches: Sequence[Batch], token: str = _TOKEN) -> SinkResult:
    """Write batches through one instance per argument, publish them and return the result.

    Args:
        sink: the sink to write to.
        batches: the batches of instance 0, of instance 1 and so on.
        token: the name of the attempt.
    """
    sink.check()
    sink.prepare(token, bounded=True)
    parallelism = len(batches)
    writers = [sink.open(instance_context(i, parallelism), token) for i in range(parallelism)]
    try:
        for writer, mine in zip(writers, batches, strict=True):
            for batch in mine:
                writer.write(batch)
        return sink.publish(token, [writer.stage() for writer in writers])
    finally:
        for writer in writers:
            writer.abort()
        sink.discard(token)
