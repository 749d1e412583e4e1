"""The part of an explanation that says which operators run as compiled loops, or why not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, cast

from ..configs.errors import InputError
from ..operators.joins.join import Join
from ..operators.joins.table_join import TableJoin
from ..operators.keyed.keyed_process import KeyedProcess
from ..operators.sources.base import Source
from ..operators.transforms import (
    FilterExpression,
    FilterRows,
    FlatMapRows,
    MapExpressions,
    MapRows,
)
from ..operators.windows.partial_aggregation import PartialAggregation
from ..operators.windows.specifications import SessionWindow
from .columns import columns_if_known
from .explanation import Table
from .logical import OperatorKind, OperatorNode

if TYPE_CHECKING:
    from ..configs.settings import Settings
    from ..operators.compiled.loop_text import Step
    from ..operators.transforms import Transform
    from ..transport.wire.types import Schema
    from .physical import PhysicalPlan

_INTERPRETED = "interpreted"
_OPERATORS = "whale_ray.operators."
_OWN_KERNELS = "its own compiled kernels, called once per batch"

_EVENT_TIMES = "a compiled pass assigns event times, numpy where they are null, late or no int64"

_LATER = ("loop or interpreted", "its columns are known when rows come; then it is decided")
_IF_UNIQUE = "if the table has no key twice, and at most {:,} rows"
_IF_CODED = "where texts come as codes of a dictionary"

_NOTES = {
    "auto": "loops are compiled once a million rows have come, or at once if they were before",
    "compiled": "loops are compiled before the first row (runtime.pipelines: compiled)",
    "interpreted": "expressions are not compiled into loops (runtime.pipelines: interpreted)",
}


def pipeline_tables(plan: PhysicalPlan, settings: Settings) -> tuple[Table, ...]:
    """Return a table of all operators: in which loop each runs, or why in none."""
    logical = plan.logical
    mode = settings.runtime.pipelines
    chains = list(_chains(plan))
    known = columns_if_known(logical) if chains else {}
    told: dict[str, tuple[str, str]] = {}
    for chain in chains:
        schema = known[chain[0].inputs[0].source]
        coded = _coded_before(plan, chain[0], schema)
        told.update(_of_chain(chain, schema, mode, coded))
    rows = []
    for node in logical.nodes:
        if node.kind is not OperatorKind.UNION:
            rows.append((node.id, *told.get(node.id, _of_other(node))))
    return (Table("Pipelines", ("operator", "runs as", "why"), tuple(rows), note=_NOTES[mode]),)


def _chains(plan: PhysicalPlan) -> Iterator[list[OperatorNode]]:
    """Yield the operators that may share a loop: those fused one after another."""
    after = {}
    for stage in plan.stages:
        for operator in stage.operators:
            links = stage.links.get(operator, ())
            if len(links) == 1 and isinstance(links[0], str):
                after[operator] = links[0]
    nodes = {node.id: node for node in plan.logical.nodes if _may_be_in_loop(node)}
    inner = {behind for before, behind in after.items() if before in nodes}
    for name, node in nodes.items():
        if name in inner:
            continue
        chain = [node]
        while (behind := after.get(chain[-1].id)) in nodes:
            chain.append(nodes[behind])
        yield chain


def _coded_before(plan: PhysicalPlan, node: OperatorNode, schema: Schema | None) -> frozenset[str]:
    """Return the columns that come to an operator as codes, if a source is fused before it."""
    feed = plan.logical.node(node.inputs[0].upstream)
    fused = any(feed.id in stage.operators and node.id in stage.operators for stage in plan.stages)
    if schema is None or not fused or not isinstance(feed.payload, Source):
        return frozenset()
    with suppress(InputError):  # whoever plans or reads it says what is wrong
        return frozenset(name for name in feed.payload.coded_columns() if name in schema)
    return frozenset()


def _may_be_in_loop(node: OperatorNode) -> bool:
    fits = FilterExpression | MapExpressions | TableJoin | PartialAggregation
    return isinstance(node.payload, fits)


def _of_chain(
    chain: Sequence[OperatorNode], schema: Schema | None, mode: str, coded: frozenset[str]
) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield how each operator of a chain runs.

    Each may begin a loop, as in `compile_transforms`: where one ends, the next operator does.

    Args:
        chain: the operators, each fused after the one before it.
        schema: the columns that come to the first; None if they are known when rows come.
        mode: `runtime.pipelines`.
        coded: those of them whose texts come as codes.
    """
    if mode == "interpreted":
        for node in chain:
            has_kernels = isinstance(node.payload, TableJoin | PartialAggregation)
            why = _OWN_KERNELS if has_kernels else "runtime.pipelines"
            yield node.id, (_INTERPRETED, why)
        return
    while chain:
        if schema is None:
            yield from ((node.id, _LATER) for node in chain)
            return
        count, why = _first_loop(chain, schema, coded)
        if count:
            depends = coded and _first_loop(chain, schema, frozenset())[0] != count
            yield from _in_one_loop(chain[:count], _IF_CODED if depends else "")
        else:
            yield chain[0].id, (_INTERPRETED, why)
        passed, chain = chain[: max(count, 1)], chain[max(count, 1) :]
        for node in passed if chain else ():
            schema, coded = _columns_after(node, schema, coded)


def _first_loop(
    chain: Sequence[OperatorNode], schema: Schema, coded: frozenset[str]
) -> tuple[int, str]:
    """Return how many operators are in the loop that begins with the first; if none, why."""
    from ..operators.compiled.compiled_chain import longest_loop

    places = frozenset(schema.index(name) for name in coded)
    *before, last = chain
    if isinstance(last.payload, PartialAggregation):
        why = _why_no_aggregating_loop(before, last.payload, schema, places)
        if not (why and before):
            return (0, f"{_OWN_KERNELS}: {why}") if why else (len(chain), "")
        chain = before
    steps = [_step(node) for node in chain]
    loop, _ = longest_loop(steps, schema, nullable=True, has_times=False, coded=places)
    if loop is not None:
        return len(loop.schemas), ""
    alone = longest_loop(steps[:1], schema, nullable=True, has_times=False, coded=places)
    return 0, alone[1]


def _columns_after(
    node: OperatorNode, schema: Schema | None, coded: frozenset[str]
) -> tuple[Schema | None, frozenset[str]]:
    """Return the columns that come out of an operator, and those whose texts are still codes."""
    from ..operators.compiled.loop_text import schema_after

    if schema is None:
        return None, frozenset()
    after, payload = schema_after(_step(node), schema), node.payload
    if isinstance(payload, MapExpressions):
        computed = payload.expressions
        passed = {name for name, one in computed.items() if one.plain_column in coded}
        coded = frozenset(passed | (coded - computed.keys() if payload.keeps else set()))
    return after, coded


def _in_one_loop(
    chain: Sequence[OperatorNode], condition: str
) -> Iterator[tuple[str, tuple[str, str]]]:
    from ..operators.compiled.table_lookup import ROWS_MAX

    if_unique = _IF_UNIQUE.format(ROWS_MAX)
    together = " → ".join(node.id for node in chain) if len(chain) > 1 else ""
    for node in chain:
        is_table = isinstance(node.payload, TableJoin)
        parts = [together, if_unique if is_table else "", condition]
        yield node.id, ("compiled loop", "; ".join(filter(None, parts)))


def _why_no_aggregating_loop(
    chain: Sequence[OperatorNode],
    partial: PartialAggregation,
    schema: Schema,
    coded: frozenset[int],
) -> str:
    """Return why a partial aggregate is not in the loop of what is before it; "" if it is."""
    from ..operators.compiled.aggregating_text import write_aggregating_loop
    from ..operators.expressions.emitters.code import NotCompilable

    asked = partial.aggregation
    has_times = asked.window is not None
    try:
        steps = [_step(node) for node in chain]
        write_aggregating_loop(
            steps, asked, schema, nullable=True, has_times=has_times, coded=coded
        )
    except NotCompilable as reason:
        return str(reason)
    return ""


def _step(node: OperatorNode) -> Step:
    from ..operators.compiled.table_lookup import TableLookup

    payload = node.payload
    if isinstance(payload, TableJoin):
        return TableLookup(payload, payload.right)
    return cast("Transform", payload)


def _of_other(node: OperatorNode) -> tuple[str, str]:
    """Return how any other operator runs."""
    payload = node.payload
    match node.kind:
        case OperatorKind.SOURCE:
            return _INTERPRETED, _of_source(node)
        case OperatorKind.TABLE_JOIN:
            return _INTERPRETED, _OWN_KERNELS
        case OperatorKind.SINK:
            return _INTERPRETED, "it writes batches"
        case OperatorKind.TRANSFORM:
            return _INTERPRETED, _why_not(payload)
    if isinstance(payload, Join):
        return _of_join(payload)
    made = getattr(payload, "func", payload)
    if isinstance(made, type) and issubclass(made, KeyedProcess):
        if getattr(made.on_row, "is_compiled", False):
            return "compiled loop", "on_row, once per batch"
    elif type(made).__module__.startswith(_OPERATORS):
        return _INTERPRETED, _OWN_KERNELS
    return _INTERPRETED, "a Python class"


def _of_join(join: Join) -> tuple[str, str]:
    """Return how a join of two streams runs, in every mode."""
    if isinstance(join.within, SessionWindow):
        return _INTERPRETED, f"{_OWN_KERNELS}: sessions are joined once they have ended"
    return "compiled loop", "build and probe, once per batch"


def _of_source(node: OperatorNode) -> str:
    parts = ["it reads batches"]
    if node.event_time is not None:
        parts.append(_EVENT_TIMES)
    with suppress(InputError):  # whoever plans or reads it says what is wrong
        if isinstance(node.payload, Source) and (coded := node.payload.coded_columns()):
            parts.append(f"texts that stay codes: {', '.join(coded)}")
    return "; ".join(parts)


def _why_not(transform: object) -> str:
    """Return why a transform by a function is in no loop."""
    if isinstance(transform, FilterRows | MapRows | FlatMapRows):
        return "a Python function, called for every row; expressions can be compiled"
    return "a Python function, called once per batch"
