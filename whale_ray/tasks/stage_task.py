"""One stage for one instance, or for all of a worker's instances: its nodes and its way out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ..metrics.job_metrics import InstanceMetrics
from ..plan.physical import Stage
from ..state.watermarks import WatermarkTracker
from ..transport.wire.batch import Batch
from .edge_writer import EdgeWriter
from .flow import Downstream
from .nodes import Node, ProcessNode, SinkNode
from .source_node import SourceNode


def close_all(closings: Iterable[Callable[[], None]]) -> None:
    """Call all of them, whatever some of them raise; then raise the first of their errors."""
    first: BaseException | None = None
    for close in closings:
        try:
            close()
        except BaseException as error:  # noqa: BLE001  # the others must be closed, too
            first = first or error
    if first is not None:
        raise first


class StageTask:
    """A stage as one producer: `source` is the id under which it sends, `instances` what it serves.

    `inputs` are the (edge id, producer id) pairs that feed it.
    """

    def __init__(
        self,
        stage: Stage,
        source: int,
        instances: tuple[int, ...],
        head: Downstream | ProcessNode | SourceNode,
        nodes: Sequence[Node],
        writers: Sequence[EdgeWriter],
        inputs: Iterable[tuple[int, int]],
    ) -> None:
        self.stage = stage
        self.source = source
        self.instances = instances
        self.nodes = tuple(nodes)
        self.writers = tuple(writers)
        self._head = head
        self._watermarks: WatermarkTracker[tuple[int, int]] = WatermarkTracker(inputs)
        self._ended = False

    @property
    def reader(self) -> SourceNode | None:
        """The source at its head, if that is what it is."""
        return self._head if isinstance(self._head, SourceNode) else None

    @property
    def sinks(self) -> Iterable[SinkNode]:
        """Its sinks' writers."""
        return (node for node in self.nodes if isinstance(node, SinkNode))

    @property
    def blocked(self) -> bool:
        """Whether an output is full, so that nothing may be handed to it."""
        return any(writer.blocked for writer in self.writers)

    @property
    def done(self) -> bool:
        """Whether its inputs have ended and all that it sent is in the rings."""
        ended = self.reader.ended if self.reader is not None else self._ended
        return ended and all(writer.done for writer in self.writers)

    @property
    def metrics(self) -> Iterable[InstanceMetrics]:
        """The counters of its operators."""
        return (node.metrics for node in self.nodes)

    def deliver(self, port: int, source: int, batch: Batch) -> None:
        """Hand rows from producer `source` to the head."""
        head = self._head
        if isinstance(head, ProcessNode):
            head.accept(port, source, batch)
        else:
            assert not isinstance(head, SourceNode)
            head.emit(batch)

    def deliver_to(self, instance: int, port: int, source: int, batch: Batch) -> None:
        """Hand over rows that one of its instances got by itself; each gets the same in turn.

        A head that serves several and does not take them one by one gets the rows once, at last.
        """
        head = self._head
        if isinstance(head, ProcessNode) and head.one_by_one:
            head.accept(port, source, batch, instance)
        elif instance == self.instances[-1]:
            self.deliver(port, source, batch)

    def advance(self, edge: int, source: int, watermark_ns: int) -> None:
        """Take a producer's watermark, and pass on how far all inputs have come together."""
        if not self._watermarks.update((edge, source), watermark_ns):
            return
        assert not isinstance(self._head, SourceNode)
        if self._watermarks.ended:
            self._ended = True
            self._head.end()
        else:
            self._head.advance(self._watermarks.current_ns)

    def begin(self) -> None:
        """End at once where no producer can reach it (local-or-shuffle from other workers)."""
        if not isinstance(self._head, SourceNode) and self._watermarks.ended:
            self._ended = True
            self._head.end()

    def poll(self, now_ns: int) -> bool:
        """Let a source read; return whether it did."""
        reader = self.reader
        if reader is None or reader.ended or self.blocked:
            return False
        progress = reader.poll(now_ns)
        if progress:
            self.settle(now_ns)
        return progress

    def settle(self, now_ns: int) -> None:
        """After a call: send what is due, and copy what must wait."""
        for writer in self.writers:
            writer.settle(now_ns)

    def count_blocked(self, elapsed_ns: int) -> None:
        """Charge a time during which a full output kept the head from working."""
        self.nodes[0].metrics.blocked_ns += elapsed_ns

    def update_metrics(self) -> None:
        """Bring gauges up to date before a snapshot."""
        for node in self.nodes:
            if isinstance(node, ProcessNode):
                node.update_metrics()
        for node in self.nodes:
            name = node.metrics.operator_id
            mine = (writer for writer in self.writers if writer.edge.source_operator == name)
            dropped = sum(writer.rows_dropped for writer in mine)
            if dropped:
                node.metrics.rows_dropped["null key"] = dropped

    def close(self) -> None:
        """Close readers, buffers and unpublished outputs."""
        close_all(
            node.close
            for node in self.nodes
            if isinstance(node, SourceNode | SinkNode | ProcessNode)
        )
