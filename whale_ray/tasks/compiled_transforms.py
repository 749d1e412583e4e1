"""Operators fused one after another, which one compiled loop does together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TypeAlias

from ..configs.errors import WhaleError
from ..operators.compiled.aggregating_chain import AggregatingChain
from ..operators.compiled.chain_loops import Mode
from ..operators.compiled.compiled_chain import CompiledChain
from ..operators.transforms import FilterExpression, MapExpressions
from ..operators.windows.aggregation import evaluated_inputs
from ..transport.wire.batch import Batch
from ..transport.wire.types import Schema
from .nodes import Node, TransformNode
from .partial_node import PartialNode
from .table_join_node import TableJoinNode

_Chained: TypeAlias = TransformNode | TableJoinNode


class CompiledTransforms:
    """Stands before the first of some operators, and takes its rows through all of them at once.

    Each operator keeps its own counts, as if the rows had come one operator after another; the time
    that the loop takes is counted by the first. Watermarks take their usual way through all.

    Args:
        nodes: the operators, each fused after the one before it, which nothing else follows.
        ending: the partial aggregate after the last of them, if there is one; then rows end in
            its groups, if the loop takes all operators.
        mode: whether to compile; see `ChainLoops`.
        longer: the same operators with more before them. While a loop of one of these is being
            compiled, none is begun here: this one's rows may soon go through that.
    """

    def __init__(
        self,
        nodes: Iterable[_Chained],
        ending: PartialNode | None,
        mode: Mode,
        longer: Sequence[CompiledTransforms] = (),
    ) -> None:
        self._nodes = tuple(nodes)
        self._ending = ending
        self._longer = longer  # grows while the loops of a task are made
        operators = [
            one.table if isinstance(one, TableJoinNode) else one.transform for one in self._nodes
        ]
        self._chain = CompiledChain(operators, mode)
        self._aggregating = (
            None if ending is None else AggregatingChain(operators, ending.partial, mode)
        )

    def warm_up(self, schema: Schema, *, has_times: bool, coded: Collection[str]) -> int:
        """Load or compile what rows with these columns will need.

        `coded`: the columns whose texts will be codes of a dictionary.

        Returns how many operators that does, a partial aggregate among them.
        """
        ending = self._aggregating
        if ending is not None and ending.warm_up(schema, has_times=has_times, coded=coded):
            return len(self._nodes) + 1
        return self._chain.warm_up(schema, has_times=has_times, coded=coded)

    @property
    def operators(self) -> tuple[str, ...]:
        """The ids of the operators, in the order in which rows pass them."""
        ending = () if self._ending is None else (self._ending.context.operator_id,)
        return (*(node.context.operator_id for node in self._nodes), *ending)

    @property
    def is_coming(self) -> bool:
        """Whether a loop is being compiled that takes rows such as the last ones."""
        aggregating = self._aggregating
        return self._chain.is_coming or (aggregating is not None and aggregating.is_coming)

    @property
    def _waits(self) -> bool:
        return self.is_coming or any(one.is_coming for one in self._longer)

    def take(self, batch: Batch) -> bool:
        """Take rows; return False if the operators themselves must."""
        if self._aggregate(batch):
            return True
        if not self._nodes:
            return False
        first = self._nodes[0]
        with first.guard(batch):
            passed = self._chain.pass_through(batch, may_begin=not self._waits)
        if passed is None:
            return False
        last = self._count(batch.num_rows, passed.counts, passed.schemas)
        if passed.rows is not None:
            last.output.emit(passed.rows)
        return True

    def _aggregate(self, batch: Batch) -> bool:
        """Take rows through all operators into the partial aggregate, if that can be compiled."""
        ending = self._ending
        if ending is None or self._aggregating is None:
            return False
        first = self._nodes[0] if self._nodes else ending
        with first.guard(batch):
            try:
                passed = self._aggregating.aggregate(batch, may_begin=not self._waits)
            except WhaleError:
                raise
            except Exception:
                self._raise_as_operators(batch)
                raise
        if passed is None:
            return False
        if self._nodes:
            self._count(batch.num_rows, passed.counts, passed.schemas)
        if passed.rows or passed.deltas:
            ending.count_aggregated(passed.rows, passed.before, passed.deltas)
        return True

    def _raise_as_operators(self, batch: Batch) -> None:
        """Raise what a function of the user's raised in a loop as an error of its operator."""
        batches = [batch]
        for node in self._nodes:
            batches = [passed for one in batches for passed in _passed(node, one)]
        if self._ending is not None:
            for one in batches:
                with self._ending.guard(one):
                    evaluated_inputs(self._ending.partial.asked.aggregates, one)

    def _count(self, rows: int, counts: Iterable[int], schemas: Iterable[Schema]) -> _Chained:
        """Count rows that passed the operators; return the last that any of them reached."""
        last = self._nodes[0]
        for node, after, columns in zip(self._nodes, counts, schemas, strict=False):
            if not rows:
                break
            node.count_passing(rows, after, columns)
            rows, last = after, node
        return last


def _passed(node: _Chained, batch: Batch) -> list[Batch]:
    """Return what comes of a batch by the operator itself; raise as it does."""
    with node.guard(batch):
        if isinstance(node, TableJoinNode):
            found: list[Batch | None] = [*node.table.join(batch)]
        else:
            found = [node.transform.apply(batch)]
    return [one for one in found if one is not None and one.num_rows]


def compile_transforms(nodes: Iterable[Node], mode: Mode) -> None:
    """Let the operators of a task that follow one another share loops.

    These are filters, projections and table joins, and a partial aggregate after them. Each of
    them may begin a loop: that of an earlier one ends where an operator has no compiled form.
    """
    found: dict[int, _Chained] = {}
    endings: dict[int, PartialNode] = {}
    for node in nodes:
        if isinstance(node, PartialNode):
            endings[id(node)] = node
        elif isinstance(node, TableJoinNode) or (
            isinstance(node, TransformNode)
            and isinstance(node.transform, FilterExpression | MapExpressions)
        ):
            found[id(node)] = node
    longer: defaultdict[int, list[CompiledTransforms]] = defaultdict(list)
    for node in found.values():
        chain: list[_Chained] = [node]
        while (after := found.get(id(chain[-1].output))) is not None:
            chain.append(after)
        ending = endings.get(id(chain[-1].output))
        node.compiled = loops = CompiledTransforms(chain, ending, mode, longer[id(node)])
        for shorter in chain[1:]:
            longer[id(shorter)].append(loops)
        if ending is not None:
            longer[id(ending)].append(loops)
    for number, ending in endings.items():
        ending.compiled = CompiledTransforms((), ending, mode, longer[number])


def warm_up_loops(
    nodes: Iterable[Node],
    columns_before: Callable[[str], Schema | None],
    coded_before: Callable[[str], Collection[str]],
    *,
    has_times: bool,
) -> None:
    """Load or compile the loops of a task before its first row, where the columns are known.

    Args:
        nodes: of the task, those upstream first.
        columns_before: the columns of an operator's rows, by its id.
        coded_before: those of them whose texts are likely to be codes of a dictionary.
        has_times: whether rows have event times.
    """
    done: set[str] = set()
    for node in nodes:
        loops = getattr(node, "compiled", None)
        name = node.context.operator_id
        if not isinstance(loops, CompiledTransforms) or name in done:
            continue
        schema = columns_before(name)
        if schema is not None:
            count = loops.warm_up(schema, has_times=has_times, coded=coded_before(name))
            done.update(loops.operators[:count])
