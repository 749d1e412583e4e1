"""The dataflow that the optimizer works on: units of execution, what a row costs there, edges.

A node is what one instance executes in a row: an operator, or a chain of fused ones, of which only
the sums count (Aeolus, definition 1). Times are in nanoseconds, rates in rows per second.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from ..configs.errors import UsageError

__all__ = [
    "Dataflow",
    "DataflowEdge",
    "DataflowNode",
    "Distribution",
    "OptimizerLimits",
    "SendingCosts",
]


class Distribution(StrEnum):
    """How the rows of an edge come to the instances of its target."""

    SPREAD = "spread"
    """Each to one of them, evenly (Aeolus: "random")."""
    KEY = "key"
    """Each to the one that owns its key."""
    ALL = "all"
    """Each to all of them (Whale: one-to-many)."""


@dataclass(frozen=True)
class DataflowNode:
    """What one instance executes.

    Args:
        id: its name, or that of the first of a chain.
        ppt_ns: the pure processing time of an input row; if all instances get the row, of all of
            them together: each handles its share of the state.
        ppt_each_ns: what a row that goes to all instances costs each of them, however many.
        rate_per_s: of a source: the rows that come in from outside, at all instances together.
        dop: the degree of parallelism, if the user has set it; sources must have one.
        dop_max: how many instances are possible; None for as many as the limits allow.
        receive_ns: what each message costs that it receives, whatever is in it.
        message_ns: what each message costs that it sends (n), if that was measured here.
        progress_ns: what a row costs each instance besides, whichever of them gets it: all follow
            its watermark.
    """

    id: str
    ppt_ns: float
    ppt_each_ns: float = 0.0
    rate_per_s: float | None = None
    dop: int | None = None
    dop_max: int | None = None
    receive_ns: float = 0.0
    message_ns: float | None = None
    progress_ns: float = 0.0


@dataclass(frozen=True)
class DataflowEdge:
    """Rows that go from one node to another.

    Args:
        source: the id of the node that sends them.
        target: the id of the node that receives them.
        distribution: over the target's instances.
        selectivity: how many of them there are for each input row of the source.
        row_bytes: the average size of one (Aeolus: t).
        largest_share: of an edge by key: the part of the rows that the most frequent key has.
    """

    source: str
    target: str
    distribution: Distribution = Distribution.SPREAD
    selectivity: float = 1.0
    row_bytes: float = 0.0
    largest_share: float = 0.0


@dataclass(frozen=True)
class SendingCosts:
    """What it costs to send a batch: n + b · t · s (Aeolus, section II).

    Args:
        message_ns: of each message, whatever is in it (n).
        byte_ns: of each byte (s).
    """

    message_ns: float
    byte_ns: float


@dataclass(frozen=True)
class OptimizerLimits:
    """What the machines allow.

    Args:
        cores: of all hosts together; None for no limit.
        hosts: among which the cores are divided evenly, and the instances as the planner does it.
        batch_bytes_max: the largest batch (Aeolus: B_max, there 64 KiB).
        dop_max: the largest degree of parallelism of an operator.
    """

    cores: int | None = None
    hosts: int = 1
    batch_bytes_max: int = 64 * 1024
    dop_max: int = 1024

    def __post_init__(self) -> None:
        if not 1 <= self.hosts <= (self.cores or self.hosts):
            msg = (
                f"{self.cores} cores cannot be divided among {self.hosts} hosts: one each at least"
            )
            raise UsageError(msg)


@dataclass(frozen=True)
class Dataflow:
    """A directed acyclic graph of nodes; checked when it is made.

    Raises:
        UsageError: a name stands for two nodes, or for none; there is a cycle; nobody feeds a node;
            a source has no rate or no degree of parallelism; a number makes no sense.
    """

    nodes: tuple[DataflowNode, ...]
    edges: tuple[DataflowEdge, ...]

    def __post_init__(self) -> None:
        _check_names(self)
        for node in self.nodes:
            _check_node(node, is_source=not self.inputs(node.id))
        for edge in self.edges:
            _check_edge(edge)
        if len(self.in_order) < len(self.nodes):
            cycle = sorted({node.id for node in self.nodes} - {one.id for one in self.in_order})
            msg = f"there is a cycle among {', '.join(cycle)}; a topology has none"
            raise UsageError(msg)

    def node(self, node_id: str) -> DataflowNode:
        """Return the node of that id; raise KeyError if there is none."""
        return self._by_id[node_id]

    def inputs(self, node_id: str) -> tuple[DataflowEdge, ...]:
        """Return the edges that feed a node."""
        return tuple(edge for edge in self.edges if edge.target == node_id)

    def outputs(self, node_id: str) -> tuple[DataflowEdge, ...]:
        """Return the edges over which a node sends."""
        return tuple(edge for edge in self.edges if edge.source == node_id)

    @cached_property
    def _by_id(self) -> dict[str, DataflowNode]:
        return {node.id: node for node in self.nodes}

    @cached_property
    def in_order(self) -> tuple[DataflowNode, ...]:
        """The nodes, each after all that feed it; those on a cycle, and after it, are missing."""
        found: dict[str, DataflowNode] = {}
        waiting = list(self.nodes)
        while ready := [
            node for node in waiting if all(edge.source in found for edge in self.inputs(node.id))
        ]:
            found.update({node.id: node for node in ready})
            waiting = [node for node in waiting if node.id not in found]
        return tuple(found.values())


def _check_names(dataflow: Dataflow) -> None:
    names = [node.id for node in dataflow.nodes]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        msg = f"{twice[0]!r} stands for two operators; give one of them another id"
        raise UsageError(msg)
    for edge in dataflow.edges:
        for end in (edge.source, edge.target):
            if end not in names:
                msg = f"the edge {edge.source} → {edge.target} names no operator with {end!r}"
                raise UsageError(msg)


def _check_node(node: DataflowNode, *, is_source: bool) -> None:
    costs = {
        "ppt_ns": node.ppt_ns,
        "ppt_each_ns": node.ppt_each_ns,
        "receive_ns": node.receive_ns,
        "message_ns": node.message_ns or 0.0,
        "progress_ns": node.progress_ns,
    }
    _check_numbers(node.id, costs)
    if not is_source:
        if node.rate_per_s is not None:
            msg = f"{node.id!r} has inputs, and so no rate of its own; leave rate_per_s out"
            raise UsageError(msg)
    elif node.rate_per_s is None:
        msg = f"nobody feeds {node.id!r}; connect it, or give it a rate_per_s if it is a source"
        raise UsageError(msg)
    elif not node.rate_per_s > 0:
        msg = f"source {node.id!r}: rate_per_s is {node.rate_per_s:g}; it must be greater than 0"
        raise UsageError(msg)
    elif node.dop is None:
        msg = f"source {node.id!r} has no dop; the user sets how many instances read the input"
        raise UsageError(msg)
    for name, dop in (("dop", node.dop), ("dop_max", node.dop_max)):
        if dop is not None and dop < 1:
            msg = f"{node.id!r}: {name} is {dop}; it must be at least 1"
            raise UsageError(msg)


def _check_edge(edge: DataflowEdge) -> None:
    where = f"{edge.source} → {edge.target}"
    _check_numbers(where, {"selectivity": edge.selectivity, "row_bytes": edge.row_bytes})
    if not 0 <= edge.largest_share <= 1:
        msg = f"{where}: largest_share is {edge.largest_share:g}; it must be from 0 to 1"
        raise UsageError(msg)


def _check_numbers(where: str, numbers: dict[str, float]) -> None:
    for name, number in numbers.items():
        if not 0 <= number < float("inf"):
            msg = f"{where}: {name} is {number:g}; it must be a number of at least 0"
            raise UsageError(msg)
