"""The logical plan: the operators of a topology, checked and in topological order.

It contains neither workers nor rings. A `Topology` builds it, the planner turns it into a
`PhysicalPlan`. A node refers only to operators that exist already, so there can be no cycle.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from ..operators.event_time import EventTime
    from ..operators.groupings import Grouping
    from ..operators.joins.table_join import TableJoin
    from ..operators.process import CoProcess, Process
    from ..operators.sinks.base import Sink
    from ..operators.sources.base import Source
    from ..operators.transforms import Transform
    from ..operators.windows.partial_aggregation import PartialAggregation
    from ..transport.custom.operators import Transport
    from .requests import ResourceRequest

    Payload: TypeAlias = (
        Source
        | Transform
        | Callable[[], Process | CoProcess]
        | Sink
        | TableJoin
        | PartialAggregation
        | "Union"
    )

OnBadRows: TypeAlias = Literal["fail", "drop"]
OnNullKey: TypeAlias = Literal["fail", "drop", "keep"]

LEFT = 0
"""The port of a single input, and of the left side of a connection."""

RIGHT = 1
"""The port of the right side of a connection."""

TABLE = 1
"""The port of the table of a table join."""

CHANGES = 2
"""The port of the changes to that table."""

MAIN = 0
"""The number of an operator's main output, its only one unless it is a process that has others."""

OutputKey: TypeAlias = tuple[str, int]
"""An output: its operator's id, and its number there."""


class OperatorKind(StrEnum):
    """The kind of an operator, which determines the type of its payload."""

    SOURCE = "source"
    """Payload: a `Source`."""
    TRANSFORM = "transform"
    """Payload: a stateless `Transform`."""
    PROCESS = "process"
    """Payload: a class or function without arguments that returns a `Process`."""
    CO_PROCESS = "co-process"
    """Payload: a class or function without arguments that returns a `CoProcess`."""
    TABLE_JOIN = "table join"
    """Payload: a `TableJoin`. Its stream comes as to a transform, its table by side inputs."""
    UNION = "union"
    """Payload: a `Union`. It is not executed: its consumers read its inputs (unions.py)."""
    SINK = "sink"
    """Payload: a `Sink`."""
    PARTIAL = "partial aggregate"
    """Payload: a `PartialAggregation`. The planner puts it in front of an edge (late_merge.py)."""

    @property
    def is_stateful(self) -> bool:
        """Whether instances keep state (both kinds of process)."""
        return self in (OperatorKind.PROCESS, OperatorKind.CO_PROCESS)


@dataclass(frozen=True)
class Union:
    """The payload of a union; it has no parameters."""

    def describe(self) -> str:
        """Return the description that `explain` prints."""
        return "all rows of each"


@dataclass(frozen=True)
class Input:
    """One input of an operator: the upstream operator, the port and the grouping."""

    upstream: str
    """The id of the operator whose output is read."""
    port: int
    """`LEFT` or `RIGHT`; of a table join `LEFT`, `TABLE` or `CHANGES`."""
    grouping: Grouping
    """`Forward()` if the user wrote no grouping."""
    on_null_key: OnNullKey = "fail"
    """For a row whose key is null: the job fails, the row is dropped and counted, or it is kept, as
    null is a key like any other."""
    transport: Transport | None = None
    """The user's transport for rows between processes; None: whale-ray's own."""
    output: int = MAIN
    """Which of the upstream operator's outputs is read."""
    batch_rows: int | None = None
    """How many rows are sent together at most; None: as many as `transport.mms_bytes` hold."""

    @property
    def source(self) -> OutputKey:
        """The output that is read."""
        return self.upstream, self.output


@dataclass(frozen=True)
class OperatorNode:
    """One operator as the user wrote it."""

    id: str
    """Unique within the topology; messages, metrics and tables name the operator by it."""
    kind: OperatorKind
    payload: Payload
    """See `OperatorKind`."""
    inputs: tuple[Input, ...] = ()
    """Empty for a source; two for a `CO_PROCESS`; two or more, ungrouped, for a `UNION`; two or
    three for a `TABLE_JOIN`; one for everything else."""
    verb: str = ""
    """The method that created it, such as "map"."""
    parallelism: int | None = None
    """As the user set it; None: the planner chooses."""
    event_time: EventTime | None = None
    """For a source that assigns event times."""
    has_event_time: bool = False
    """Whether the rows that leave this operator have event times."""
    event_time_order: bool = False
    """For a process: whether it receives its rows in the order of their event times."""
    per_worker: bool = False
    """For a process: one object serves all instances of a worker."""
    outputs: tuple[str, ...] = ("main",)
    """The names of its outputs; the main one comes first."""
    declared_state: tuple[str, ...] = ()
    """For a process: what it keeps for each key, in words; () if its state is the object itself."""
    keeps_rows: bool = False
    """For a process: whether what it keeps are rows, of no declared form."""
    state_reason: str = ""
    """For a process: how its state moves, and why; "" if its level says so."""
    late_outputs: tuple[str, ...] = ()
    """Those on which it may send rows that lie behind the watermark."""
    takes_late_rows: bool = False
    """For a process: whether it takes such rows."""
    order_reason: str = ""
    """For a process: why it receives its rows in that order."""
    location: str = ""
    """Where the user wrote it: "file.py:12"."""
    request: ResourceRequest | None = None
    """For a process: the Ray resources of each instance."""

    @property
    def stream_inputs(self) -> tuple[Input, ...]:
        """The inputs whose rows, event times and watermarks go through it: all but side inputs."""
        return self.inputs[:1] if self.kind is OperatorKind.TABLE_JOIN else self.inputs

    @property
    def side_inputs(self) -> tuple[Input, ...]:
        """The inputs that it reads beside its stream, see `side_inputs.py`."""
        return self.inputs[len(self.stream_inputs) :]

    @property
    def output_keys(self) -> tuple[OutputKey, ...]:
        """All of its outputs."""
        return tuple((self.id, output) for output in range(len(self.outputs)))


def describe_output(node: OperatorNode, output: int) -> str:
    """Return what names an output before what reads it: "late: ", "" for the main output."""
    return "" if output == MAIN else f"{node.outputs[output]}: "


@dataclass(frozen=True)
class LogicalPlan:
    """A whole topology, every operator after all of its inputs."""

    name: str
    nodes: tuple[OperatorNode, ...]

    @cached_property
    def _by_id(self) -> dict[str, OperatorNode]:
        return {node.id: node for node in self.nodes}

    @cached_property
    def _sources_of(self) -> dict[str, frozenset[str]]:
        found: dict[str, frozenset[str]] = {}
        for node in self.nodes:
            above = {found[feed.upstream] for feed in node.stream_inputs}
            own = frozenset({node.id}) if node.kind is OperatorKind.SOURCE else frozenset()
            # Operators of one chain share a set, so that thousands of them take no more.
            found[node.id] = above.pop() if len(above) == 1 else own.union(*above)
        return found

    def __getstate__(self) -> dict[str, object]:
        """Leave caches out of pickles."""
        return {"name": self.name, "nodes": self.nodes}

    def node(self, operator_id: str) -> OperatorNode:
        """Return the operator of that id; raise KeyError if there is none."""
        return self._by_id[operator_id]

    def sources_of(self, operator_id: str) -> frozenset[str]:
        """Return the ids of the sources whose rows an operator's streams come from."""
        return self._sources_of[operator_id]

    def output_name(self, key: OutputKey) -> str:
        """Return the name of an output in tables and messages: "counts", "counts.late"."""
        operator_id, output = key
        if output == MAIN:
            return operator_id
        return f"{operator_id}.{self.node(operator_id).outputs[output]}"

    def consumers(self, operator_id: str) -> tuple[tuple[OperatorNode, Input], ...]:
        """Return every (operator, input) that reads the output of `operator_id`, in plan order."""
        return tuple(
            (node, feed)
            for node in self.nodes
            for feed in node.inputs
            if feed.upstream == operator_id
        )

    def of_kind(self, kind: OperatorKind) -> tuple[OperatorNode, ...]:
        """Return the operators of one kind, in plan order."""
        return tuple(node for node in self.nodes if node.kind is kind)
