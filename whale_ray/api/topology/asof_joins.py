"""Checks of the arguments of `join_asof`, and the operator that it adds."""

from __future__ import annotations

from dataclasses import replace

from ...configs.errors import InputError
from ...operators.groupings import Global, Key
from ...operators.joins.asof_join import AsOfJoin, Strategy
from ...operators.joins.equi_join import How
from ...operators.windows.durations import duration_ns
from ...plan.columns import known_columns
from ...plan.logical import LEFT, RIGHT, Input
from .checks import check_bool, check_choice, mistake
from .join_arguments import add_stream_join, join_keys
from .registry import Registry

HOWS = ("left", "inner")


def add_join_asof(
    registry: Registry,
    sides: tuple[Input, Input],
    by: object,
    strategy: Strategy,
    tolerance: object,
    how: How,
    allow_exact_matches: bool,
    wanted_id: str | None,
    parallelism: int | None,
) -> str:
    """Add the as-of join of two streams and return its id.

    Args:
        registry: of the topology.
        sides: the left and the right stream, without a grouping.
        by: see `Stream.join_asof`, as the other arguments.

    Raises:
        TopologyError: an argument is not valid; the message says how to correct it.
    """
    operator_id = registry.choose_id("join_asof", wanted_id)
    check_choice(operator_id, "strategy", strategy, ("backward", "forward", "nearest"))
    check_choice(operator_id, "how", how, HOWS)
    left, right = sides
    schemas = known_columns(registry.plan_so_far)
    join = AsOfJoin(
        keys=() if by is None else join_keys(operator_id, "by", by),
        strategy=strategy,
        tolerance_ns=None if tolerance is None else _tolerance(operator_id, tolerance),
        exact_matches=_exact_matches(operator_id, allow_exact_matches, strategy),
        how=how,
        left=schemas[left.source],
        right=schemas[right.source],
    )
    add_stream_join(
        registry,
        operator_id,
        "join_asof",
        join,
        sides,
        (_grouped(left, LEFT, join.left_keys), _grouped(right, RIGHT, join.right_keys)),
        parallelism,
        declared_state=join.kept,
        event_time_order=True,
        order_reason="their order says which right row is next to a left one",
    )
    return operator_id


def _grouped(side: Input, port: int, keys: tuple[str, ...]) -> Input:
    grouping = Key(keys) if keys else Global()
    return replace(side, port=port, grouping=grouping, on_null_key="keep")


def _tolerance(operator_id: str, given: object) -> int:
    try:
        found = duration_ns(given, "tolerance")
    except InputError as error:
        raise mistake(operator_id, str(error)) from None
    if found <= 0:
        raise mistake(
            operator_id,
            f"tolerance is {given!r}: it must be longer than nothing; without it any distance"
            " matches",
        )
    return found


def _exact_matches(operator_id: str, given: bool, strategy: Strategy) -> bool:
    check_bool(operator_id, "allow_exact_matches", given)
    if not given and strategy == "nearest":
        raise mistake(
            operator_id,
            "the nearest row may be one of the same time: leave out allow_exact_matches=False, or"
            " pass strategy='backward' or 'forward'",
        )
    return given
