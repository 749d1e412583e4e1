"""Builds the tasks of one worker from its share of the physical plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar, cast

from ..configs.errors import InputError, UsageError, WhaleError
from ..configs.settings import Settings
from ..operators.event_time import EventTimeAssigner, LatePolicy
from ..operators.groupings import All, Key
from ..operators.joins.table_join import TableJoin
from ..operators.process import CoProcess, InstanceContext
from ..operators.sinks.base import Sink, SinkWriter
from ..operators.snapshots import OperatorSnapshot
from ..operators.sources.base import Source, SourceReader
from ..operators.split_event_times import SplitEventTimes
from ..operators.transforms import Transform
from ..plan.assignment import Assignment, has_checkpoints, job_is_bounded, output_token
from ..plan.columns import known_columns
from ..plan.lateness import policy_after_restore
from ..plan.logical import MAIN, OperatorKind, OperatorNode, OutputKey
from ..plan.physical import Edge, PhysicalPlan, Stage, watermark_slots
from ..plan.side_inputs import sources_of_side_inputs
from ..state.budget import StateBudget
from ..state.event_time_buffer import EventTimeBuffer
from ..state.spill import SpillFile
from ..transport.clock import Clock
from ..transport.closing import close_after_error
from ..transport.slicing import StreamSlicer
from .addressing import AddressingStrategy, KeyedAddressing, OneWorker, WorkerOriented
from .edge_writer import EdgeWriter, Stamp
from .flow import Downstream, FanOut
from .inputs_behind import InputBehind, InputsBehind
from .instance_oriented import InstanceOriented
from .nodes import Node, SinkNode, TransformNode, naming_user_errors
from .partial_node import PartialNode
from .partitioner import make_partitioner
from .predecessors import Predecessors
from .process_node import ProcessNode, make_process
from .read_size import read_size
from .ring_queue import OutRing
from .side_input import SideInput
from .source_node import EndedReader, SourceNode
from .stage_task import StageTask
from .table_join_node import TableJoinNode

if TYPE_CHECKING:
    from ..operators.compiled.chain_loops import Mode
    from ..operators.joins.broadcast_table import BroadcastTable
    from ..operators.windows.partial_aggregation import PartialAggregation
    from ..transport.wire.types import Schema

_T = TypeVar("_T")


class TaskBuilder:
    """Builds the tasks of one worker for one attempt.

    `out_rings` gives the worker's own rings of each edge it sends on. `restored` are the snapshots
    of all objects of each operator, by its id, that the attempt resumes from.
    """

    def __init__(
        self,
        assignment: Assignment,
        worker: int,
        attempt: int,
        clock: Clock,
        out_rings: Mapping[int, Sequence[OutRing]],
        state_budget: StateBudget,
        restored: Mapping[str, Sequence[OperatorSnapshot]],
    ) -> None:
        self._assignment = assignment
        self._plan: PhysicalPlan = assignment.plan
        self._settings: Settings = assignment.settings
        self._worker = worker
        self._attempt = attempt
        self._clock = clock
        self._out_rings = out_rings
        self._restored = restored
        self._checkpoints = has_checkpoints(assignment)
        self._state_budget = state_budget
        self._tables: dict[str, BroadcastTable] = {}
        self._columns: dict[OutputKey, Schema | None] | None = None
        self._of_tables = sources_of_side_inputs(assignment.plan.logical)

    def build(self) -> list[StageTask]:
        """Return the worker's tasks, those upstream first; opens sources, operators and sinks."""
        tasks: list[StageTask] = []
        try:
            for stage in self._plan.local_stages(self._worker):
                local = self._plan.instances_on(stage.id, self._worker)
                groups = [local] if stage.per_worker else [(instance,) for instance in local]
                for instances in groups:
                    tasks.append(_TaskAssembly(self, stage, instances).build())
                    if self._restored:
                        tasks[-1].restore(self._restored)
        except BaseException:
            close_after_error(task.close for task in tasks)
            raise
        return tasks

    def context(
        self, node: OperatorNode, stage: Stage, instances: tuple[int, ...]
    ) -> InstanceContext:
        """Return what an operator is told about where it runs."""
        context = self._new_context(node, stage, instances)
        before = self._before(context)
        if before is None or before.ended:
            return context
        return replace(context, watermark_ns=before.watermark_ns)

    def on_late(self, edge: Edge) -> LatePolicy | None:
        """Return what becomes of an edge's rows behind its reader's watermark; None if none is.

        In a restored job those of a new source may be, and once the job is restored again, too.
        """
        if edge.on_late is not None or not self._restored:
            return edge.on_late
        return policy_after_restore(self._plan.logical, (edge.source_operator, edge.source_output))

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

    def writer(self, edge: Edge, source: int) -> EdgeWriter:
        """Return the writer of one producer on one edge."""
        transport = self._settings.transport
        wtl_ns = int(transport.wtl_ms * 1e6)
        return EdgeWriter(
            edge,
            Stamp(source, self._attempt, edge.carries_time, transport.checksum),
            self._addressings(edge, source),
            StreamSlicer(transport.mms_bytes, wtl_ns, edge.batch_rows),
        )

    def _addressings(self, edge: Edge, source: int) -> dict[str, AddressingStrategy]:
        """Return the ways to address an edge, by name: one, or two where the plan has the rings."""
        rings, with_times = self._out_rings[edge.id], edge.carries_time
        if not isinstance(edge.grouping, All):
            return {"keyed": self._keyed(edge, rings, source)}
        shared = [ring for ring in rings if not ring.per_instance]
        single = [ring for ring in rings if ring.per_instance]
        found: dict[str, AddressingStrategy] = {
            "worker-oriented": WorkerOriented(edge, shared, with_times=with_times)
        }
        if single:
            found["instance-oriented"] = InstanceOriented(edge, single, with_times=with_times)
        return found

    def _keyed(self, edge: Edge, rings: Sequence[OutRing], source: int) -> AddressingStrategy:
        """Return the addressing of rows that go to one instance each."""
        target, with_times = self._plan.stages[edge.target_stage], edge.carries_time
        together = target.per_worker or all(len(ring.instances) == 1 for ring in rings)
        if together and len(rings) == 1 and isinstance(edge.grouping, Key):
            return OneWorker(edge, rings, edge.grouping.columns, with_times=with_times)
        parallelism = target.parallelism
        local = self._plan.instances_on(edge.target_stage, self._worker)
        partitioner = make_partitioner(edge, parallelism, target.owners, local, source)
        return KeyedAddressing(
            edge, rings, partitioner, parallelism, together=together, with_times=with_times
        )

    def source_node(
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

    def process_node(
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
        bounded = job_is_bounded(self._assignment)
        return ProcessNode(
            context,
            self._worker,
            process,
            outputs,
            buffer,
            needs_times,
            bounded,
            remake=remake,
            groupings=[feed.grouping for feed in node.inputs],
            checkpoints=self._checkpoints,
        )

    def transform_node(
        self, node: OperatorNode, context: InstanceContext, output: Downstream
    ) -> TransformNode:
        """Make a stateless operator."""
        bounded = job_is_bounded(self._assignment)
        transform = cast(Transform, node.payload)
        return TransformNode(context, self._worker, transform, output, bounded)

    def table_join_node(
        self, node: OperatorNode, context: InstanceContext, output: Downstream
    ) -> TableJoinNode:
        """Make a table join; the worker's first instance fills the table of all of them."""
        fills = node.id not in self._tables
        if fills:
            self._tables[node.id] = cast(TableJoin, node.payload).make_table(context)
        return TableJoinNode(context, self._worker, self._tables[node.id], output, fills)

    def partial_node(
        self, node: OperatorNode, context: InstanceContext, output: Downstream
    ) -> PartialNode:
        """Make a partial aggregate."""
        payload = cast("PartialAggregation", node.payload)
        return PartialNode(context, self._worker, payload, output)

    def sink_node(self, node: OperatorNode, context: InstanceContext) -> SinkNode:
        """Open a sink's writer."""
        sink = cast(Sink, node.payload)
        token = output_token(self._assignment, self._attempt)
        publishes_parts = not (self._checkpoints or job_is_bounded(self._assignment))
        with naming_user_errors(context):
            made = sink.open(context, token)
        writer = _opened(made, SinkWriter, f"{type(sink).__name__}.open()", context)
        return SinkNode(context, self._worker, writer, publishes_parts)

    @property
    def worker(self) -> int:
        """The worker that is built."""
        return self._worker

    @property
    def pipelines(self) -> Mode:
        """Whether filters and projections are compiled."""
        return self._settings.runtime.pipelines

    def columns_before(self, operator: str) -> Schema | None:
        """Return the columns of an operator's first input; None if they are not known yet."""
        if self._columns is None:
            try:
                self._columns = known_columns(self._plan.logical)
            except Exception:  # noqa: BLE001  # a source may know its columns at the driver only
                self._columns = {}  # and what is wrong is said where it is used
        return self._columns.get(self._plan.operator(operator).inputs[0].source)

    def coded_before(self, stage: Stage, operator: str) -> tuple[str, ...]:
        """Return the columns that come to an operator as codes, if a source is fused before it."""
        feed = self._plan.operator(self._plan.operator(operator).inputs[0].upstream)
        is_source = feed.kind is OperatorKind.SOURCE and feed.id in stage.operators
        if not is_source or self.pipelines == "interpreted":
            return ()
        try:
            return cast(Source, feed.payload).coded_columns()
        except (WhaleError, OSError):  # a file that cannot be read is named where it is read
            return ()

    @property
    def plan(self) -> PhysicalPlan:
        """The plan that is built from."""
        return self._plan


class _TaskAssembly:
    """Puts one task together, from the last operators back to the head."""

    def __init__(self, builder: TaskBuilder, stage: Stage, instances: tuple[int, ...]) -> None:
        self._builder = builder
        self._stage = stage
        self._instances = instances
        self._nodes: list[Node] = []
        self._writers: list[EdgeWriter] = []

    def build(self) -> StageTask:
        try:
            return self._task(self._node(self._stage.head))
        except BaseException:
            close_after_error(node.close for node in self._nodes)
            raise

    def _task(self, head: Node) -> StageTask:
        """Return the task of nodes that are all there."""
        plan = self._builder.plan
        inputs = [
            (edge.id, producer)
            for edge in plan.in_edges(self._stage.id)
            if not edge.is_side_input
            for producer in plan.producers_of(edge.id, self._builder.worker)
        ]
        order = {operator: place for place, operator in enumerate(self._stage.operators)}
        nodes = sorted(self._nodes, key=lambda node: order[node.context.operator_id])
        if any(isinstance(node, TransformNode | TableJoinNode | PartialNode) for node in nodes):
            self._compile(nodes)
        return StageTask(
            self._stage,
            self._instances,
            head,
            nodes,
            self._writers,
            inputs,
            self._inputs_behind(head),
            self._side_inputs(),
        )

    def _compile(self, nodes: Sequence[Node]) -> None:
        """Let nodes share loops, prepared now or once the task's tables are there."""
        # Loaded only where it is needed: that takes a tenth of a second.
        from .compiled_transforms import compile_transforms, warm_up_loops

        compile_transforms(nodes, self._builder.pipelines)
        tables = [node for node in nodes if isinstance(node, TableJoinNode)]

        def warm_up() -> None:
            if all(table.ready for table in tables):
                columns_before = self._builder.columns_before
                coded_before = partial(self._builder.coded_before, self._stage)
                warm_up_loops(nodes, columns_before, coded_before, has_times=self._has_times())

        for table in tables:
            table.when_ready = warm_up
        if not tables:
            warm_up()

    def _has_times(self) -> bool:
        """Whether the rows of the task have event times."""
        plan = self._builder.plan
        head = plan.operator(self._stage.head)
        if head.kind is OperatorKind.SOURCE:
            return head.event_time is not None
        return any(edge.carries_time for edge in plan.in_edges(self._stage.id))

    def _side_inputs(self) -> dict[tuple[str, int], SideInput]:
        """Return the side inputs of the stage's operators, by operator and port."""
        plan = self._builder.plan
        feeding: dict[tuple[str, int], list[tuple[int, int]]] = {}
        for edge in plan.in_edges(self._stage.id):
            if edge.is_side_input:
                producers = plan.producers_of(edge.id, self._builder.worker)
                pairs = ((edge.id, producer) for producer in producers)
                feeding.setdefault(edge.target, []).extend(pairs)
        joins = {
            node.context.operator_id: node
            for node in self._nodes
            if isinstance(node, TableJoinNode)
        }
        return {
            (operator, port): SideInput(joins[operator], port, inputs, self._instances)
            for (operator, port), inputs in feeding.items()
        }

    def _inputs_behind(self, head: Node) -> InputsBehind | None:
        """Return what handles rows that the watermark may have passed; None if none can be so."""
        plan = self._builder.plan
        behind = {
            (edge.port, edge.first_source + producer): InputBehind(
                edge.id, producer, edge.source_operator, on_late, edge.on_late is not None
            )
            for edge in plan.in_edges(self._stage.id)
            if edge.carries_time and (on_late := self._builder.on_late(edge)) is not None
            for producer in plan.producers_of(edge.id, self._builder.worker)
        }
        return InputsBehind(behind, head.metrics) if behind else None

    def _node(self, operator_id: str) -> Node:
        builder, stage = self._builder, self._stage
        operator = builder.plan.operator(operator_id)
        context = builder.context(operator, stage, self._instances)
        outputs = [self._output(operator_id, number) for number in range(len(operator.outputs))]
        output = outputs[MAIN]
        node: Node
        match operator.kind:
            case OperatorKind.SOURCE:
                node = builder.source_node(operator, context, output)
            case OperatorKind.TRANSFORM:
                node = builder.transform_node(operator, context, output)
            case OperatorKind.TABLE_JOIN:
                node = builder.table_join_node(operator, context, output)
            case OperatorKind.SINK:
                node = builder.sink_node(operator, context)
            case OperatorKind.PARTIAL:
                node = builder.partial_node(operator, context, output)
            case _:
                node = builder.process_node(operator, context, outputs)
        self._nodes.append(node)
        return node

    def _output(self, operator_id: str, number: int) -> Downstream:
        """Return what follows one of an operator's outputs."""
        plan = self._builder.plan
        targets: list[Downstream] = []
        for link in self._stage.links.get(operator_id, ()):
            if plan.output_read(link) != number:
                continue
            if isinstance(link, str):
                targets.append(self._node(link))
            else:
                writer = self._builder.writer(plan.edges[link], self._instances[0])
                self._writers.append(writer)
                targets.append(writer)
        return targets[0] if len(targets) == 1 else FanOut(targets)


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
