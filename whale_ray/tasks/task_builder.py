"""Builds the tasks of one worker from its share of the physical plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, cast

from ..configs.errors import WhaleError
from ..operators.event_time import LatePolicy
from ..operators.snapshots import OperatorSnapshot
from ..operators.sources.base import Source
from ..plan.assignment import Assignment
from ..plan.columns import known_columns
from ..plan.lateness import policy_after_restore
from ..plan.logical import OperatorKind, OutputKey
from ..plan.physical import Edge, PhysicalPlan, Stage
from ..state.budget import StateBudget
from ..transport.clock import Clock
from ..transport.closing import close_after_error
from .edge_writer import EdgeWriter
from .flow import Downstream, FanOut
from .inputs_behind import InputBehind, InputsBehind
from .node_builder import NodeBuilder
from .nodes import Node, TransformNode
from .partial_node import PartialNode
from .ring_queue import OutRing
from .side_input import SideInput
from .stage_task import StageTask
from .table_join_node import TableJoinNode
from .writer_builder import WriterBuilder

if TYPE_CHECKING:
    from ..operators.compiled.chain_loops import Mode
    from ..transport.wire.types import Schema


class TaskBuilder:
    """Builds the tasks of one worker for one attempt.

    Args:
        assignment: of the job.
        worker: its number.
        attempt: the attempt's number.
        clock: of the worker.
        out_rings: the worker's own rings of each edge that it sends on.
        state_budget: of the worker.
        restored: the snapshots of all objects of each operator, by its id, that the attempt resumes
            from.

    Attributes:
        plan: of the job.
        worker: its number.
        pipelines: whether filters and projections are compiled.
        nodes, writers: make the parts of tasks.
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
        settings = assignment.settings
        self.plan: PhysicalPlan = assignment.plan
        self.worker = worker
        self.pipelines: Mode = settings.runtime.pipelines
        self.nodes = NodeBuilder(assignment, worker, attempt, clock, state_budget, restored)
        self.writers = WriterBuilder(self.plan, settings, worker, attempt, out_rings)
        self._restored = restored
        self._columns: dict[OutputKey, Schema | None] | None = None

    def build(self) -> list[StageTask]:
        """Return the worker's tasks, those upstream first; opens sources, operators and sinks."""
        tasks: list[StageTask] = []
        try:
            for stage in self.plan.local_stages(self.worker):
                local = self.plan.instances_on(stage.id, self.worker)
                groups = [local] if stage.per_worker else [(instance,) for instance in local]
                for instances in groups:
                    tasks.append(_TaskAssembly(self, stage, instances).build())
                    if self._restored:
                        tasks[-1].restore(self._restored)
        except BaseException:
            close_after_error(task.close for task in tasks)
            raise
        return tasks

    def on_late(self, edge: Edge) -> LatePolicy | None:
        """Return what becomes of an edge's rows behind its reader's watermark; None if none is.

        In a restored job those of a new source may be, and once the job is restored again, too.
        """
        if edge.on_late is not None or not self._restored:
            return edge.on_late
        return policy_after_restore(self.plan.logical, (edge.source_operator, edge.source_output))

    def columns_before(self, operator: str) -> Schema | None:
        """Return the columns of an operator's first input; None if they are not known yet."""
        if self._columns is None:
            try:
                self._columns = known_columns(self.plan.logical)
            except Exception:  # noqa: BLE001  # a source may know its columns at the driver only
                self._columns = {}  # and what is wrong is said where it is used
        return self._columns.get(self.plan.operator(operator).inputs[0].source)

    def coded_before(self, stage: Stage, operator: str) -> tuple[str, ...]:
        """Return the columns that come to an operator as codes, if a source is fused before it."""
        feed = self.plan.operator(self.plan.operator(operator).inputs[0].upstream)
        is_source = feed.kind is OperatorKind.SOURCE and feed.id in stage.operators
        if not is_source or self.pipelines == "interpreted":
            return ()
        try:
            return cast(Source, feed.payload).coded_columns()
        except (WhaleError, OSError):  # a file that cannot be read is named where it is read
            return ()


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
        """Make the node of an operator, after all that follow it."""
        operator = self._builder.plan.operator(operator_id)
        outputs = [self._output(operator_id, number) for number in range(len(operator.outputs))]
        node = self._builder.nodes.node(operator, self._stage, self._instances, outputs)
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
                writer = self._builder.writers.writer(plan.edges[link], self._instances[0])
                self._writers.append(writer)
                targets.append(writer)
        return targets[0] if len(targets) == 1 else FanOut(targets)
