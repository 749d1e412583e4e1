"""The dataflow that the optimizer works on, of a `tspec` file: chains of operators are one node."""

from __future__ import annotations

from ..configs.errors import InputError
from ..configs.units import NS_PER_US
from ..optimizer.dataflow import Dataflow, DataflowEdge, DataflowNode, Distribution
from .specification import (
    SIMULATED,
    InputSpec,
    OperatorSpec,
    SpecGrouping,
    SpecKind,
    TopologySpec,
)

__all__ = ["chain_heads", "dataflow_of"]

_DISTRIBUTIONS = {
    SpecGrouping.SHUFFLE: Distribution.SPREAD,
    SpecGrouping.GLOBAL: Distribution.SPREAD,
    SpecGrouping.KEY: Distribution.KEY,
    SpecGrouping.ALL: Distribution.ALL,
}


def chain_heads(spec: TopologySpec) -> dict[str, str]:
    """Return of each operator the first one of its chain.

    An operator whose only input is not grouped is executed with what it reads, by the same
    instances: no row is sent between them. The table of a join is there before the rows are.
    """
    heads: dict[str, str] = {}
    for one in spec.operators:
        feeds = _feeds(one)
        is_chained = len(feeds) == 1 and feeds[0].grouping is SpecGrouping.FORWARD
        heads[one.id] = heads[one.inputs[0].upstream] if is_chained else one.id
    return heads


def dataflow_of(spec: TopologySpec) -> Dataflow:
    """Return a topology's chains, with the sums of what their operators cost.

    Raises:
        InputError: a source has no rate, what is not simulated no ppt_us, or an operator of which
            rows are sent no row_bytes.
        UsageError: see `Dataflow`.
    """
    heads, fed = chain_heads(spec), _fed(spec)
    rows: dict[str, float] = {}  # of each operator's output, for each row that the chain takes
    costs: dict[str, tuple[float, float]] = {}
    edges: list[DataflowEdge] = []
    for one in fed:
        _check_costs(spec, one)
        head = heads[one.id]
        taken = 1.0 if one.id == head else rows[one.inputs[0].upstream]
        rows[one.id] = taken * one.fan_out
        ppt_ns, each_ns = costs.get(head, (0.0, 0.0))
        own_ns = taken * (one.ppt_us or 0.0) * NS_PER_US
        costs[head] = ppt_ns + own_ns, each_ns + taken * one.ppt_each_us * NS_PER_US
        if one.id == head:
            edges += [_edge(spec, heads, rows, feed, head) for feed in _feeds(one)]
    nodes = tuple(_node(one, *costs[one.id]) for one in fed if heads[one.id] == one.id)
    return Dataflow(nodes, tuple(edges))


def _feeds(one: OperatorSpec) -> tuple[InputSpec, ...]:
    """Return what an operator reads, but the table of a join, which is read before its rows."""
    if one.kind is SpecKind.JOIN_TABLE:
        return tuple(feed for feed in one.inputs if feed.side != 1)
    return one.inputs


def _fed(spec: TopologySpec) -> list[OperatorSpec]:
    """Return the operators, but those that only lead to the tables of joins."""
    read: set[str] = set()
    tables: set[str] = set()
    for one in reversed(spec.operators):  # readers first
        is_beside = one.id in tables and one.id not in read
        for feed in one.inputs:
            is_table = is_beside or feed not in _feeds(one)
            (tables if is_table else read).add(feed.upstream)
    return [one for one in spec.operators if one.id in read or one.id not in tables]


def _check_costs(spec: TopologySpec, one: OperatorSpec) -> None:
    missing = None
    if one.kind is SpecKind.SOURCE and one.rate_per_s is None:
        missing = "rate_per_s"
    elif one.what != SIMULATED and one.ppt_us is None:
        missing = "ppt_us"
    if missing is not None:
        msg = (
            f"{spec.where}, line {one.line}: {one.kind} {one.id!r} needs {missing} to be optimized;"
            " or let it be measured: whale-ray optimize --measured"
        )
        raise InputError(msg)


def _node(one: OperatorSpec, ppt_ns: float, each_ns: float) -> DataflowNode:
    is_single = any(feed.grouping is SpecGrouping.GLOBAL for feed in one.inputs)
    dop = one.dop or (1 if one.kind is SpecKind.SOURCE else None)
    return DataflowNode(one.id, ppt_ns, each_ns, one.rate_per_s, dop, 1 if is_single else None)


def _edge(
    spec: TopologySpec,
    heads: dict[str, str],
    rows: dict[str, float],
    feed: InputSpec,
    target: str,
) -> DataflowEdge:
    upstream = spec.operator(feed.upstream)
    if upstream.row_bytes is None:
        msg = (
            f"{spec.where}, line {upstream.line}: {upstream.id!r} needs row_bytes to be optimized:"
            f" its rows are sent to {target!r}"
        )
        raise InputError(msg)
    return DataflowEdge(
        heads[upstream.id],
        target,
        _DISTRIBUTIONS.get(feed.grouping, Distribution.SPREAD),
        rows[upstream.id],
        upstream.row_bytes,
        feed.largest_share,
    )
