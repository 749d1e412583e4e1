"""One stage for one instance, or for all of a worker's instances: its nodes and its writers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from ..metrics.counters import InstanceMetrics
from ..operators.snapshots import OperatorSnapshot
from ..plan.physical import Stage
from ..state.watermarks import WATERMARK_NONE, WatermarkTracker
from ..transport.closing import close_all
from ..transport.wire.batch import Batch
from .edge_writer import EdgeWriter
from .flow import WatermarkBoard
from .inputs_behind import InputsBehind
from .nodes import Node
from .predecessors import Predecessors
from .side_input import SideInput

BLOCKED_POLL_NS = 1_000_000
"""How soon a full ring is tried again, should its reader's ring of the doorbell have been lost."""


class StageTask:
    """A stage as one producer, which serves `instances` and sends under the number of the first.

    `inputs` are the (edge id, producer id) pairs that feed its head; `inputs_behind` handles rows
    that the watermark may have passed, if any can be. `side_inputs` are those of its operators, by
    operator and port.
    """

    def __init__(
        self,
        stage: Stage,
        instances: tuple[int, ...],
        head: Node,
        nodes: Sequence[Node],
        writers: Sequence[EdgeWriter],
        inputs: Iterable[tuple[int, int]],
        inputs_behind: InputsBehind | None = None,
        side_inputs: Mapping[tuple[str, int], SideInput] = MappingProxyType({}),
    ) -> None:
        self.stage = stage
        self.instances = instances
        self.nodes = tuple(nodes)
        self.writers = tuple(writers)
        self.side_inputs = dict(side_inputs)
        self.paused = False
        """Whether nothing may be handed to it: the marker of an epoch is on its way to the rings
        that it shares with other tasks of its stage."""
        self._head = head
        self._unfed = False
        self._restored = False
        self._null_keys: dict[str, int] = {}
        self._inputs_behind = inputs_behind
        self._may_idle = self._idle = False
        self._has_risen = False  # the watermark of all inputs, since the head was told
        self._keep_views = tuple(node for node in self.nodes if node.keeps_views)
        self._limit_waiting = tuple(node for node in self.nodes if node.limits_waiting)
        self._producers = tuple(inputs)
        self._watermarks: WatermarkTracker[tuple[int, int]] = WatermarkTracker(self._producers)

    @property
    def blocked(self) -> bool:
        """Whether an output is full, so that nothing may be handed to it."""
        for writer in self.writers:  # asked several times a message: a loop, no generator
            if writer.blocked:
                return True
        return False

    @property
    def accepts_rows(self) -> bool:
        """Whether rows may be handed to its head: its tables are complete, and no output is full.

        Until then its head is not called at all, and a source not read.
        """
        if self.paused or self._head.has_more:
            return False
        return self.tables_ready and not self.blocked

    @property
    def has_more(self) -> bool:
        """Whether its head has more to emit before anything else may be handed to it."""
        return self._head.has_more

    @property
    def tables_ready(self) -> bool:
        """Whether its side inputs have brought all that its head needs."""
        return not self.side_inputs or all(side.ready for side in self.side_inputs.values())

    @property
    def reads(self) -> bool:
        """Whether its head reads from outside the job."""
        return not self._head.takes_input

    @property
    def head_ended(self) -> bool:
        """Whether its head has ended: it emits nothing more."""
        return self._head.ended

    @property
    def done(self) -> bool:
        """Whether its inputs and its head have ended and all that it sent is in the rings."""
        return (
            self._head.ended
            and all(side.ended for side in self.side_inputs.values())
            and all(writer.done for writer in self.writers)
        )

    @property
    def metrics(self) -> Iterable[InstanceMetrics]:
        """The counters of its operators."""
        return (node.metrics for node in self.nodes)

    def deliver(self, port: int, source: int, batch: Batch) -> None:
        """Hand rows from producer `source` to the head, unless none of them is left."""
        if self._inputs_behind is not None:
            batch = self._inputs_behind.take(port, source, batch, self._watermarks)
        if batch.num_rows:
            self._head.accept(port, source, batch)

    def deliver_to(self, instance: int, port: int, source: int, batch: Batch) -> None:
        """Hand the head rows that one instance got in a message of its own (`Node.accept_for`)."""
        if self._inputs_behind is not None:
            batch = self._inputs_behind.take(port, source, batch, self._watermarks)
        if batch.num_rows:
            self._head.accept_for(instance, port, source, batch)

    def advance(self, edge: int, source: int, watermark_ns: int) -> None:
        """Take a producer's watermark, and pass on how far all inputs have come together."""
        if self._watermarks.update((edge, source), watermark_ns):
            self._has_risen = True
        if self._has_risen or self._may_idle:
            self._tell_head()
            self._emit_more()

    def set_idle(self, edge: int, source: int, idle: bool) -> None:
        """Take whether a producer is idle, and pass on what follows from it for all together.

        One that is idle no longer has sent a message. A watermark that follows from that waits for
        `advance`, which takes the message's own one: its rows come before both.
        """
        if self._watermarks.set_idle((edge, source), idle):
            self._has_risen = True
        self._may_idle = True
        if idle:
            self._tell_head()
            self._emit_more()
        else:
            self._tell_idleness()

    def _tell_head(self) -> None:
        """Tell the head what is new of its inputs, unless it has more to emit before."""
        if self._has_risen and not self._head.has_more:
            self._has_risen = False
            if self._watermarks.ended:
                self._end_head()
            else:
                self._head.advance(self._watermarks.current_ns)
        self._tell_idleness()

    def _end_head(self) -> None:
        """End the head, behind the latest watermark of any input.

        Else it would be that of the input that happened to end last.
        """
        latest_ns = self._watermarks.latest_ns
        if latest_ns > self._head.metrics.watermark_ns:
            self._head.advance(latest_ns)
        if self._head.has_more:
            self._has_risen = True  # what it has more comes before its end
        else:
            self._head.end()

    def _tell_idleness(self) -> None:
        if self._watermarks.idle != self._idle and not self._head.has_more:
            self._idle = self._watermarks.idle
            self._head.set_idle(self._idle)

    def _emit_more(self) -> bool:
        """Let the head emit what it has more, unless an output is full; return whether it did."""
        emitted = False
        while self._head.has_more and not (self.paused or self.blocked):
            self._head.go_on()
            self._tell_head()
            emitted = True
        return emitted

    def begin(self, board: WatermarkBoard) -> None:
        """Let a source join the board; note whether no producer can reach the head.

        A local-or-shuffle edge may bring nothing from other workers. The head then ends as soon as
        it is called.
        """
        self._head.join(board)
        if self._restored:
            self._head.resume()
        self._unfed = self._head.takes_input and self._watermarks.ended and not self._head.ended
        self._end_unfed()

    def _end_unfed(self) -> bool:
        """End the head if nothing feeds it and its tables are complete; return whether it ended."""
        ends = self._unfed and self.tables_ready
        if ends:
            self._unfed = False
            self._head.end()
        return ends

    def poll(self, now_ns: int) -> bool:
        """Pass on rows that are due, and let the head read or act; return whether it did."""
        if self._head.has_more:
            emitted = self._emit_more()
            if emitted:
                self.settle(now_ns)
            return emitted
        may_act = self._head.is_polled or self._limit_waiting or self._unfed
        if not (may_act and self.accepts_rows):
            return False
        moved = self._end_unfed()
        for node in self._limit_waiting:
            if _is_due(node, now_ns):
                node.pass_on_waiting()
                moved = True
        if self._head.is_polled:
            moved |= self._head.poll(now_ns)
        if moved:
            self.settle(now_ns)
        return moved

    def drain(self) -> None:
        """Let a source read no more."""
        self._head.drain()

    def suspend(self) -> None:
        """Let a source read no more, without an end."""
        self._head.suspend()

    def hurry(self, hurries: bool) -> None:
        """Let a source read little at a time, as markers wait for its turns, or as ever."""
        self._head.hurry(hurries)

    def deadlines_ns(self, now_ns: int) -> Iterator[int]:
        """Yield when its writers, and its head, are due for a turn; monotonic ns."""
        for writer in self.writers:
            if (deadline_ns := writer.deadline_ns) is not None:
                yield deadline_ns
        if self.blocked:
            yield now_ns + BLOCKED_POLL_NS
            return
        if self.paused or not self.tables_ready:
            return
        if self._head.has_more:
            yield now_ns
            return
        if (due_ns := self._head.due_ns(now_ns)) is not None:
            yield due_ns
        for node in self._limit_waiting:
            if node.waiting_until_ns is not None:
                yield node.waiting_until_ns

    def settle(self, now_ns: int) -> None:
        """After a call: send what is due, and copy what must wait."""
        for writer in self.writers:
            writer.settle(now_ns)
        for node in self._keep_views:
            node.own()

    def count_blocked(self, elapsed_ns: int) -> None:
        """Count a time during which a full output kept the head from working."""
        self.nodes[0].metrics.blocked_ns += elapsed_ns

    def empty_for_marker(self) -> None:
        """Pass on what its operators must not hold at an epoch's marker, which follows it."""
        for node in self.nodes:
            node.empty_for_marker()

    def snapshot(self, epoch: int) -> Iterator[OperatorSnapshot]:
        """Yield what its operators keep at an epoch's marker.

        Each as soon as it is taken: what a sink has staged is not lost if a later operator fails.
        Behind `empty_for_marker`; nothing is emitted here, so the marker may be on its way already.
        Called between two other calls, once all its inputs have come to the marker; also after its
        end. What happens later does not change it: batches are owned.

        Raises:
            UsageError: an operator keeps what cannot be saved, or a source has no position.
            OutputError: a sink cannot stage its rows.
        """
        for node in self.nodes:
            kept = node.snapshot(epoch)
            if node is self.nodes[0]:
                latest_ns = self._watermarks.latest_ns
                of_inputs = {"producers": self._producers, "latest_ns": latest_ns}
                kept = replace(kept, values={**kept.values, **of_inputs})
            yield kept

    def restore(self, snapshots: Mapping[str, Sequence[OperatorSnapshot]]) -> None:
        """Take over what the operators kept; called once, after the task is built, before `begin`.

        Args:
            snapshots: those of all objects of an operator, by its id, whatever their parallelism
                was. An operator without any begins anew.

        Raises:
            UsageError: an operator's state cannot be divided among the instances that there are.
        """
        for node in self.nodes:
            found = snapshots.get(node.context.operator_id)
            if found:
                same = all(one.values.get("producers") == self._producers for one in found)
                node.restore(Predecessors(found, node.context, same_producers=same))
                if node is self._head:
                    self._restored = True
                    latest_ns = max(one.values.get("latest_ns", WATERMARK_NONE) for one in found)
                    self._watermarks.restore(node.metrics.watermark_ns, latest_ns)

    def update_metrics(self) -> None:
        """Bring gauges up to date before a snapshot."""
        self.nodes[0].metrics.waits_for_table = not self.tables_ready
        for node in self.nodes:
            node.update_metrics()
            name = node.metrics.operator_id
            mine = (writer for writer in self.writers if writer.edge.source_operator == name)
            dropped = sum(writer.rows_dropped for writer in mine)
            node.metrics.drop({"null key": dropped - self._null_keys.get(name, 0)})
            self._null_keys[name] = dropped

    def close(self) -> None:
        """Close readers, buffers and unpublished outputs."""
        close_all(node.close for node in self.nodes)


def _is_due(node: Node, now_ns: int) -> bool:
    return node.waiting_until_ns is not None and now_ns >= node.waiting_until_ns
