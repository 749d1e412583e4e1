"""Operators fused behind one another, which one compiled loop does together."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from ..operators.compiled.compiled_chain import CompiledChain, Mode
from ..operators.transforms import FilterExpression, MapExpressions
from ..transport.wire.batch import Batch
from .nodes import Node, TransformNode
from .table_join_node import TableJoinNode

_Chained: TypeAlias = TransformNode | TableJoinNode


class CompiledTransforms:
    """Stands before the first of some operators, and takes its rows through all of them at once.

    Each operator keeps its own counts, as if the rows had come one operator after another; the time
    that the loop takes is counted by the first. Watermarks take their usual way through all.

    Args:
        nodes: the operators, each fused behind the one before it, which nothing else follows.
        mode: whether to compile; see `CompiledChain`.
    """

    def __init__(self, nodes: Iterable[_Chained], mode: Mode) -> None:
        self._nodes = tuple(nodes)
        self._chain = CompiledChain(
            [one.table if isinstance(one, TableJoinNode) else one.transform for one in self._nodes],
            mode,
        )

    def take(self, batch: Batch) -> bool:
        """Take rows; return False if the operators themselves must."""
        first = self._nodes[0]
        with first.guard(batch):
            passed = self._chain.pass_through(batch)
        if passed is None:
            return False
        rows = batch.num_rows
        last = first
        for node, after, columns in zip(self._nodes, passed.counts, passed.schemas, strict=False):
            if not rows:
                break
            node.count_passing(rows, after, columns)
            rows, last = after, node
        if passed.rows is not None:
            last.output.emit(passed.rows)
        return True


def compile_transforms(nodes: Iterable[Node], mode: Mode) -> None:
    """Let the filters, projections and table joins of a task that follow one another share loops.

    Each of them may begin a loop: that of an earlier one ends where an operator has no compiled
    form.
    """
    found = {
        id(node): node
        for node in nodes
        if isinstance(node, TableJoinNode)
        or (
            isinstance(node, TransformNode)
            and isinstance(node.transform, FilterExpression | MapExpressions)
        )
    }
    for node in found.values():
        chain: list[_Chained] = [node]
        while (after := found.get(id(chain[-1].output))) is not None:
            chain.append(after)
        node.compiled = CompiledTransforms(chain, mode)
