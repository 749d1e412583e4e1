"""Makes the nodes of a worker's tasks: opens sources, operators and sinks.

In a job that is restored, they go on where they were.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar, cast

from ..configs.errors import InputError, UsageError
from ..configs.settings import Settings
from ..operators.event_time import EventTimeAssigner
from ..operators.groupings import Key
from ..operators.joins.table_join import TableJoin
from ..operators.process import CoProcess, InstanceContext
from ..operators.sinks.base import Sink, SinkWriter
from ..operators.snapshots import OperatorSnapshot
from ..operators.sources.base import Source, SourceReader
from ..operators.split_event_times import SplitEventTimes
from ..operators.transforms import Transform
from ..plan.assignment import Assignment, has_checkpoints, job_is_bounded, output_token
from ..plan.logical import MAIN, OperatorKind, OperatorNode
from ..plan.physical import PhysicalPlan, Stage, watermark_slots
from ..plan.side_inputs import sources_of_side_inputs
from ..state.budget import StateBudget
from ..state.event_time_buffer import EventTimeBuffer
from ..state.spill import SpillFile
from ..transport.clock import Clock
from .flow import Downstream
from .nodes import Node, SinkNode, TransformNode, naming_user_errors
from .partial_node import PartialNode
from .predecessors import Predecessors
from .process_node import ProcessNode, make_process
from .read_size import read_size
from .source_node import EndedReader, SourceNode
from .table_join_node import TableJoinNode

if TYPE_CHECKING:
    from ..operators.joins.broadcast_table import BroadcastTable
    from ..operators.windows.partial_aggregation import PartialAggregation

_T = TypeVar("_T")


class NodeBuilder:
    """Makes the nodes of one worker for one attempt.

    Args:
        assignment: of the job.
        worker: its number.
        attempt: the attempt's number.
        clock: of the worker.
        state_budget: of the worker.
        restored: the snapshots of all objects of each operator, by its id, that the attempt resumes
            from.
    """

    def __init__(
        self,
        assignment: Assignment,
        worker: int,
        attempt: int,
        clock: Clock,
        state_budget: StateBudget,
        restored: Mapping[str, Sequence[OperatorSnapshot]],
    ) -> None:
        self._assignment = assignment
        self._plan: PhysicalPlan = assignment.plan
        self._settings: Settings = assignment.settings
        self._worker = worker
        self._attempt = attempt
        self._clock = clock
        self._state_budget = state_budget
        self._restored = restored
        self._is_bounded = job_is_bounded(assignment)
        self._checkpoints = has_checkpoints(assignment)
        self._tables: dict[str, BroadcastTable] = {}
        self._of_tables = sources_of_side_inputs(assignment.plan.logical)

    def node(
        self,
        operator: OperatorNode,
        stage: Stage,
        instances: tuple[int, ...],
        outputs: Sequence[Downstream],
    ) -> Node:
        """Make the node of some instances of an operator, and open it.

        Args:
            operator: of the topology.
            stage: that it is in.
            instances: those that the node is.
            outputs: what follows each of the operator's outputs.
        """
        context = self._context(operator, stage, instances)
        match operator.kind:
            case OperatorKind.SOURCE:
                return self._source_node(operator, context, outputs[MAIN])
            case OperatorKind.TRANSFORM:
                return self._transform_node(operator, context, outputs[MAIN])
            case OperatorKind.TABLE_JOIN:
                return self._table_join_node(operator, context, outputs[MAIN])
            case OperatorKind.SINK:
                return self._sink_node(operator, context)
            case OperatorKind.PARTIAL:
                return self._partial_node(operator, context, outputs[MAIN])
            case _:
                return self._process_node(operator, context, outputs)

    def _context(
        self, node: OperatorNode, stage: Stage, instances: tuple[int, ...]
    ) -> InstanceContext:
        """Return what an operator is told about where it runs."""
        context = self._new_context(node, stage, instances)
        before = self._before(context)
        if before is None or before.ended:
            return context
        return replace(context, watermark_ns=before.watermark_ns)

    def _before(self, context: InstanceContext) -> Predecessors | None:
        """Return the snapshots of an operator's objects; None in an operator that begins."""
        found = self._restored.get(context.operator_id)
        return Predecessors(found, context) if found else None

    def _new_context(
        self, node: OperatorNode, stage: Stage, instances: tuple[int, ...]
    ) -> InstanceContext:
        return InstanceContext(
            job=self._plan.name,
            operator_id=node.id,
            instance=instances[0],
            instances=instances,
            parallelism=stage.parallelism,
            attempt=self._attempt,
            clock=self._clock,
            virtual_nodes=self._settings.runtime.virtual_nodes,
            state_budget=self._state_budget,
            keys=tuple(
                feed.grouping.columns if isinstance(feed.grouping, Key) else ()
                for feed in node.inputs
            ),
            in_event_time_order=node.event_time_order,
            owners=stage.owners,
        )

    def _source_node(
        self, node: OperatorNode, context: InstanceContext, output: Downstream
    ) -> SourceNode:
        """Open a source."""
        runtime = self._settings.runtime
        with naming_user_errors(context):
            reader = self._open(cast(Source, node.payload), context)
        behind = self._plan.stage_of(node.id).operators[1:]
        followers = [self._plan.operator(one) for one in behind]
        return SourceNode(
            context,
            self._worker,
            reader,
            output,
            _assigner(node),
            watermark_slots(self._plan).get((node.id, context.instance)),
            read_size(runtime.source_batch_rows, cast(Source, node.payload), followers),
            int(runtime.max_drift_ms * 1e6),
            reads_to_end=node.id in self._of_tables,
        )

    def _open(self, source: Source, context: InstanceContext) -> SourceReader:
        """Open a source where it was; one that has ended is not read again.

        Raises:
            InputError: it has no positions, or cannot resume from them.
        """
        before, name = self._before(context), type(source).__name__
        if before is None:
            return _opened(source.open(context), SourceReader, f"{name}.open()", context)
        if before.ended:
            return EndedReader(None if before.own is None else before.own.position)
        positions = [one.position for one in before.all]
        known = [position for position in positions if position is not None]
        if len(known) < len(positions):
            msg = (
                f"source {context.operator_id!r}: some of its instances had ended and said no"
                " position, so it cannot go on: give its reader position()"
            )
            raise InputError(msg)
        made = source.open_at(context, known)
        return _opened(made, SourceReader, f"{name}.open_at()", context)

    def _process_node(
        self, node: OperatorNode, context: InstanceContext, outputs: Sequence[Downstream]
    ) -> ProcessNode:
        """Make a process or co-process and open it."""
        runtime = self._settings.runtime
        remake = partial(make_process, cast("type[CoProcess]", node.payload), node.outputs)
        with naming_user_errors(context):
            process = remake()
        buffer = None
        if node.event_time_order:
            buffer = EventTimeBuffer(
                len(node.inputs),  # a union is one of them
                runtime.order_buffer_bytes,
                lambda: SpillFile(node.id, runtime.spill_bytes_max, runtime.spill_directory),
            )
        needs_times = any(
            edge.carries_time for edge in self._plan.out_edges(self._plan.stage_of(node.id).id)
        )
        return ProcessNode(
            context,
            self._worker,
            process,
            outputs,
            buffer,
            needs_times,
            self._is_bounded,
            remake=remake,
            groupings=[feed.grouping for feed in node.inputs],
            checkpoints=self._checkpoints,
        )

    def _transform_node(
        self, node: OperatorNode, context: InstanceContext, output: Downstream
    ) -> TransformNode:
        """Make a stateless operator."""
        transform = cast(Transform, node.payload)
        return TransformNode(context, self._worker, transform, output, self._is_bounded)

    def _table_join_node(
        self, node: OperatorNode, context: InstanceContext, output: Downstream
    ) -> TableJoinNode:
        """Make a table join; the worker's first instance fills the table of all of them."""
        fills = node.id not in self._tables
        if fills:
            self._tables[node.id] = cast(TableJoin, node.payload).make_table(context)
        return TableJoinNode(context, self._worker, self._tables[node.id], output, fills)

    def _partial_node(
        self, node: OperatorNode, context: InstanceContext, output: Downstream
    ) -> PartialNode:
        """Make a partial aggregate."""
        payload = cast("PartialAggregation", node.payload)
        return PartialNode(context, self._worker, payload, output)

    def _sink_node(self, node: OperatorNode, context: InstanceContext) -> SinkNode:
        """Open a sink's writer."""
        sink = cast(Sink, node.payload)
        token = output_token(self._assignment, self._attempt)
        publishes_parts = not (self._checkpoints or self._is_bounded)
        with naming_user_errors(context):
            made = sink.open(context, token)
        writer = _opened(made, SinkWriter, f"{type(sink).__name__}.open()", context)
        return SinkNode(context, self._worker, writer, publishes_parts)


def _opened(made: _T, kind: type, call: str, context: InstanceContext) -> _T:
    """Return what a source or a sink opened; raise `UsageError` if it is something else."""
    if isinstance(made, kind):
        return made
    msg = (
        f"operator {context.operator_id!r}: {call} returned {made!r:.60}: it must return a "
        f"{kind.__name__}"
    )
    raise UsageError(msg)


def _assigner(node: OperatorNode) -> EventTimeAssigner | SplitEventTimes | None:
    """Return what assigns event time to a source's rows, if it has any: by split if it has some."""
    if node.event_time is None:
        return None
    if cast(Source, node.payload).has_splits:
        return SplitEventTimes(node.event_time, node.id)
    return EventTimeAssigner(node.event_time, node.id)
