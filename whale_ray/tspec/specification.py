"""What a `tspec` file says of a topology: its operators, what each costs, what joins them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from ..plan.logical import OnBadRows

__all__ = ["SIMULATED", "InputSpec", "OperatorSpec", "SpecGrouping", "SpecKind", "TopologySpec"]

SIMULATED: Final = "simulated"
"""In the place of an import path: an operator that is busy and emits, and computes nothing."""


class SpecKind(StrEnum):
    """The kinds of operators in a file; also the key under which it says what the operator is."""

    SOURCE = "source"
    MAP = "map"
    FLAT_MAP = "flat_map"
    FILTER = "filter"
    SELECT = "select"
    WITH_COLUMN = "with_column"
    PROCESS = "process"
    CO_PROCESS = "co_process"
    AGG = "agg"
    TOP_N = "top_n"
    DROP_DUPLICATES = "drop_duplicates"
    JOIN = "join"
    JOIN_ASOF = "join_asof"
    JOIN_TABLE = "join_table"
    SINK = "sink"

    @property
    def is_stateless(self) -> bool:
        """Whether it has no state, so that it may run where its rows are."""
        return self in (
            SpecKind.MAP,
            SpecKind.FLAT_MAP,
            SpecKind.FILTER,
            SpecKind.SELECT,
            SpecKind.WITH_COLUMN,
            SpecKind.JOIN_TABLE,
        )

    @property
    def inputs_max(self) -> int | None:
        """How many inputs it has at most, which are not read as one stream; None if they are.

        A join with a table has a third one if it has changes.
        """
        if self is SpecKind.JOIN_TABLE:
            return 3
        return 2 if self in (SpecKind.CO_PROCESS, SpecKind.JOIN, SpecKind.JOIN_ASOF) else None


class SpecGrouping(StrEnum):
    """How rows come to the instances of an operator."""

    FORWARD = "forward"
    SHUFFLE = "shuffle"
    KEY = "key"
    ALL = "all"
    GLOBAL = "global"


@dataclass(frozen=True)
class InputSpec:
    """One input of an operator.

    Args:
        upstream: the id of the operator that is read ("from" in the file).
        grouping: over the instances.
        by: the columns of the key, if it is by key.
        largest_share: the part of the rows that the most frequent key has.
        output: the name of another output than the main one.
        on_null: what becomes of a row whose key is null: "fail" or "drop".
        side: of a join and the like, which of its inputs it is, from 0; those of one side are read
            as one stream.
    """

    upstream: str
    grouping: SpecGrouping = SpecGrouping.FORWARD
    by: tuple[str, ...] = ()
    largest_share: float = 0.0
    output: str = ""
    on_null: str = "fail"
    side: int = 0


@dataclass(frozen=True)
class OperatorSpec:
    """One operator.

    Args:
        id: its id.
        kind: what it is.
        what: an import path, "module:name"; `SIMULATED`; of what has no code, an expression or
            several; of a join how rows join, such as "inner"; of drop_duplicates
            within what time rows are duplicates.
        arguments: with which what is imported is called, or those of the stream's method.
        inputs: what it reads.
        dop: the degree of parallelism, if it is set.
        batch_rows: how many rows it sends together at most, if it is set.
        ppt_us: the pure processing time of a row, microseconds.
        ppt_each_us: what a row that goes to all instances costs each of them besides.
        fan_out: rows out for each row in.
        row_bytes: of a row that it emits.
        rate_per_s: of a source: how many rows arrive in a second.
        rows: of a simulated source: how many there are; endless without it.
        event_time: of a source: the arguments of its event times, by their names in `EventTime`.
        on_bad_rows: of a source: "fail" or "drop".
        event_time_order: of a process: whether rows come in that order, if it is set.
        line: where it stands in the file.
    """

    id: str
    kind: SpecKind
    what: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    inputs: tuple[InputSpec, ...] = ()
    dop: int | None = None
    batch_rows: int | None = None
    ppt_us: float | None = None
    ppt_each_us: float = 0.0
    fan_out: float = 1.0
    row_bytes: float | None = None
    rate_per_s: float | None = None
    rows: int | None = None
    event_time: Mapping[str, Any] | None = None
    on_bad_rows: OnBadRows = "fail"
    event_time_order: bool | None = None
    line: int = 0

    @property
    def sides(self) -> tuple[tuple[InputSpec, ...], ...]:
        """The inputs that are read as one stream, by side; all, if it reads but one stream."""
        if self.kind.inputs_max is None:
            return (self.inputs,)
        count = 1 + max((feed.side for feed in self.inputs), default=-1)
        return tuple(
            tuple(feed for feed in self.inputs if feed.side == side) for side in range(count)
        )


@dataclass(frozen=True)
class TopologySpec:
    """A topology as a file says.

    Args:
        name: of the topology.
        operators: each after those that it reads.
        where: the file, for messages.
    """

    name: str
    operators: tuple[OperatorSpec, ...]
    where: str = ""

    def operator(self, operator_id: str) -> OperatorSpec:
        """Return the operator of that id; raise KeyError if there is none."""
        for one in self.operators:
            if one.id == operator_id:
                return one
        raise KeyError(operator_id)
