"""The physical plan: the stages with the worker of each instance, the edges and their rings.

A *stage* is a tree of operators fused into one call chain: its head reads from rings (or is a
source), all others are called by the operator before them. An *edge* connects two stages; its
grouping distributes the rows, which travel through one or more *rings*. Plans are immutable values
and are sent to workers by cloudpickle.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import TYPE_CHECKING

from .logical import MAIN, LogicalPlan, OnNullKey, OperatorKind, OperatorNode
from .side_inputs import sources_of_side_inputs
from .streams import CustomStream, StreamPlan

if TYPE_CHECKING:
    from ..operators.event_time import LatePolicy
    from ..operators.groupings import Grouping
    from ..state.owners import Owners
    from ..transport.custom.operators import Transport


@dataclass(frozen=True)
class Stage:
    """Fused operators, which run as `parallelism` instances."""

    id: int
    operators: tuple[str, ...]
    """Operator ids: the head first, each after its upstream operator."""
    parallelism: int
    instance_worker: tuple[int, ...]
    """The worker of each instance, ascending."""
    per_worker: bool
    """Whether one object serves all of a worker's instances. For everything downstream, such a
    stage is one producer per worker: the first of the worker's instances."""
    links: Mapping[str, tuple[str | int, ...]] = field(hash=False)
    """What follows each operator: the id (str) of a fused operator or the id (int) of an edge."""
    owners: Owners | None = None
    """Which instance owns each virtual node; None if no edge sends it rows by key."""

    @property
    def head(self) -> str:
        """The id of the operator that reads from the stage's rings, or of its source."""
        return self.operators[0]

    @property
    def workers(self) -> tuple[int, ...]:
        """The workers that run instances of the stage, ascending."""
        return tuple(sorted(set(self.instance_worker)))


@dataclass(frozen=True)
class Edge:
    """A stream between two stages."""

    id: int
    source_operator: str
    target_operator: str
    source_stage: int
    target_stage: int
    port: int
    """The target operator's port, see `Input.port`."""
    grouping: Grouping
    """`Forward()` only for a stream of a union; elsewhere such operators are fused, or the grouping
    is `LocalOrShuffle()`."""
    carries_time: bool
    """Whether rows are sent with their event times, since a process downstream can read them."""
    ordered: bool
    """Whether the target receives the rows in the order of their event times."""
    on_null_key: OnNullKey = "fail"
    """For a row whose key is null: the job fails, the row is dropped and counted, or it is kept."""
    reason: str = ""
    """Why the two operators are not fused."""
    transport: Transport | None = None
    """The user's transport for rows between workers (custom_transports.py)."""
    first_source: int = 0
    """The number of its first instance among all instances that feed the port, by which rows of
    equal time are ordered. It differs from 0 only for the later streams of a union."""
    on_late: LatePolicy | None = None
    """For rows that the watermark has passed while their producer was idle; None: none can be."""
    source_output: int = MAIN
    """Which of the source operator's outputs it carries."""
    is_side_input: bool = False
    """Whether it feeds an operator of the stage beside its stream, wherever in the stage that is;
    all other edges feed the stage's head."""
    batch_rows: int | None = None
    """How many rows a message has at most, see `Input.batch_rows`."""

    @property
    def target(self) -> tuple[str, int]:
        """The operator and the port that it feeds."""
        return self.target_operator, self.port


@dataclass(frozen=True)
class PhysicalPlan(StreamPlan):
    """Everything that workers need to run a topology."""

    name: str
    stages: tuple[Stage, ...]
    """`stages[i].id == i`; every stage comes after the stages that feed it."""
    edges: tuple[Edge, ...]
    """`edges[i].id == i`."""
    logical: LogicalPlan
    custom_streams: tuple[CustomStream, ...] = ()
    """The streams of users' transports; their ids follow those of the rings."""

    def __getstate__(self) -> dict[str, object]:
        """Leave caches out of pickles."""
        return {entry.name: getattr(self, entry.name) for entry in fields(self)}

    @property
    def streams(self) -> StreamPlan:
        """The part of the plan that relays need."""
        return StreamPlan(self.workers, self.rings, self.hosts)

    def operator(self, operator_id: str) -> OperatorNode:
        """Return the logical operator of that id."""
        return self.logical.node(operator_id)

    @cached_property
    def _stage_of_operator(self) -> dict[str, Stage]:
        return {operator: stage for stage in self.stages for operator in stage.operators}

    def output_read(self, link: str | int) -> int:
        """Return which output of the operator before it a link of a stage reads."""
        if isinstance(link, int):
            return self.edges[link].source_output
        return self.operator(link).inputs[0].output

    def source_name(self, edge: Edge) -> str:
        """Return the name of the output that an edge carries, for tables and messages."""
        return self.logical.output_name((edge.source_operator, edge.source_output))

    def stage_of(self, operator_id: str) -> Stage:
        """Return the stage that runs an operator; raise KeyError if there is none."""
        return self._stage_of_operator[operator_id]

    def local_stages(self, worker: int) -> tuple[Stage, ...]:
        """Return the stages with instances on `worker`, those upstream first."""
        return tuple(stage for stage in self.stages if worker in stage.instance_worker)

    def instances_on(self, stage_id: int, worker: int) -> tuple[int, ...]:
        """Return the instances of a stage that `worker` runs, ascending."""
        placed = self.stages[stage_id].instance_worker
        return tuple(instance for instance, host in enumerate(placed) if host == worker)

    def in_edges(self, stage_id: int) -> tuple[Edge, ...]:
        """Return the edges that feed a stage, left before right."""
        found = [edge for edge in self.edges if edge.target_stage == stage_id]
        return tuple(sorted(found, key=lambda edge: edge.port))

    def out_edges(self, stage_id: int) -> tuple[Edge, ...]:
        """Return the edges that leave a stage, in the order of their ids."""
        return tuple(edge for edge in self.edges if edge.source_stage == stage_id)

    def is_united(self, edge: Edge) -> bool:
        """Return whether other edges have the same target: the streams of a union."""
        beside = self.in_edges(edge.target_stage)
        return sum(other.target == edge.target for other in beside) > 1

    def source_ids(self, stage_id: int, worker: int) -> tuple[int, ...]:
        """Return the producer ids under which a stage sends from `worker`.

        These are its local instances; for a per-worker stage, only the first of them.
        """
        local = self.instances_on(stage_id, worker)
        return local[:1] if self.stages[stage_id].per_worker else local

    def producers_of(self, edge_id: int, worker: int) -> tuple[int, ...]:
        """Return the ids of all producers whose rows of an edge can reach `worker`.

        The edge's watermark at that worker is the minimum of their watermarks, and the edge has
        ended there when each of them has ended.
        """
        stage = self.edges[edge_id].source_stage
        producing = [
            ring.producer_worker
            for ring in self.rings_of_edge(edge_id)
            if worker in ring.consumer_workers and not ring.per_instance
        ]
        producing += [
            stream.producer_worker
            for stream in self.custom_streams_of_edge(edge_id)
            if stream.consumer_worker == worker
        ]
        return tuple(
            producer for sending in producing for producer in self.source_ids(stage, sending)
        )

    def custom_streams_of_edge(self, edge_id: int) -> tuple[CustomStream, ...]:
        """Return the streams of an edge that travel by a user's transport."""
        return tuple(stream for stream in self.custom_streams if stream.edge == edge_id)


def watermark_slots(plan: PhysicalPlan) -> dict[tuple[str, int], int]:
    """Return the slot on the boards of each instance of a source with event time.

    The key is (operator id, instance). Sources of side inputs have none: others wait for them to
    end, so they must wait for nobody.
    """
    of_tables = sources_of_side_inputs(plan.logical)
    timed = [
        (node.id, instance)
        for node in plan.logical.of_kind(OperatorKind.SOURCE)
        if node.event_time is not None and node.id not in of_tables
        for instance in range(plan.stage_of(node.id).parallelism)
    ]
    return {key: slot for slot, key in enumerate(timed)}
