"""Side inputs: streams that an operator reads beside the one whose rows pass through it.

A table join needs its whole table before the first row of its stream. Every instance gets all rows
of the table, over a broadcast edge, and no other input of its stage is read until that edge has
ended: rings fill, and what feeds them is back-pressured, so nothing has to be kept. (Beam's side
inputs; a broadcast hash join in Spark.)

Whoever waits must not be waited for. The sources of a join's stream, and those of the changes to
its table, may have to wait until those of the table have ended; those of the stream may be fused
with the join, so the changes must not come from them either. If this order among all sources of a
topology has no cycle, some table can always be read to its end, so the job cannot stop, and edges
lead from stages to later ones; else the topology is refused. For the same reason sources of tables
are not aligned with others (`max_drift_ms`).
"""

from __future__ import annotations

from collections.abc import Iterable

from .logical import TABLE, LogicalPlan, OperatorNode

__all__ = ["sources_of_side_inputs", "upstream_sources", "waiting_for_itself"]


def upstream_sources(
    logical: LogicalPlan, operators: Iterable[str], *, streams_only: bool = False
) -> frozenset[str]:
    """Return the sources from which these operators get rows; of a source, itself.

    With `streams_only` not those of side inputs: back-pressure does not reach these.
    """
    found: set[str] = set()
    seen: set[str] = set()
    waiting = list(operators)
    while waiting:
        node = logical.node(waiting.pop())
        if node.id in seen:
            continue
        seen.add(node.id)
        if not node.inputs:
            found.add(node.id)
        feeds = node.stream_inputs if streams_only else node.inputs
        waiting += [feed.upstream for feed in feeds]
    return frozenset(found)


def sources_of_side_inputs(logical: LogicalPlan) -> frozenset[str]:
    """Return the sources that must be read to their ends before others may continue."""
    tables = [
        feed.upstream for node in logical.nodes for feed in node.side_inputs if feed.port == TABLE
    ]
    return upstream_sources(logical, tables)


def waiting_for_itself(logical: LogicalPlan) -> str | None:
    """Return a source that comes before itself in this order, or None if there is none."""
    waits: dict[str, set[str]] = {}
    for node in logical.nodes:
        for earlier, later in _orders(logical, node):
            for source in later:
                waits.setdefault(source, set()).update(earlier)
    while ready := [one for one, others in waits.items() if not others & waits.keys()]:
        for one in ready:
            del waits[one]
    return min(waits, default=None)


def _orders(
    logical: LogicalPlan, node: OperatorNode
) -> Iterable[tuple[frozenset[str], frozenset[str]]]:
    """Yield for an operator: earlier sources, and those that come after them in the order."""
    if not node.side_inputs:
        return
    tables = [feed.upstream for feed in node.side_inputs if feed.port == TABLE]
    others = [feed.upstream for feed in node.side_inputs if feed.port != TABLE]
    table = upstream_sources(logical, tables)
    changes = upstream_sources(logical, others, streams_only=True)
    stream = upstream_sources(logical, [node.inputs[0].upstream], streams_only=True)
    yield table, stream | changes
    yield changes, stream
