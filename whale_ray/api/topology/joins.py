"""Checks of the arguments of `join`, and the operator that it adds."""

from __future__ import annotations

from dataclasses import replace

from ...configs.errors import InputError
from ...operators.groupings import Key
from ...operators.joins.equi_join import How
from ...operators.joins.interval import TimeInterval
from ...operators.joins.join import Join
from ...operators.windows.durations import duration_ns
from ...operators.windows.specifications import SessionWindow, TimeWindow
from ...plan.columns import known_columns
from ...plan.logical import LEFT, RIGHT, Input
from .checks import check_choice, describe_value, mistake
from .join_arguments import add_stream_join, join_keys
from .registry import Registry
from .time_columns import event_time_zone

HOWS = ("inner", "left", "right", "outer", "semi", "anti")

_EXAMPLE = "within=whale.window('12 hours') or within=whale.interval('-10 minutes', '0 s')"


def add_join(
    registry: Registry,
    sides: tuple[Input, Input],
    on: object,
    within: object,
    how: How,
    wanted_id: str | None,
    allowed_lateness: object,
    parallelism: int | None,
) -> str:
    """Add the join of two streams and return its id.

    Args:
        registry: of the topology.
        sides: the left and the right stream, without a grouping.
        on: see `Stream.join`, as the other arguments.

    Raises:
        TopologyError: an argument is not valid; the message says how to correct it.
    """
    operator_id = registry.choose_id("join", wanted_id)
    check_choice(operator_id, "how", how, HOWS)
    keys = join_keys(operator_id, "on", on)
    if not keys:
        raise mistake(operator_id, "a join needs columns that are equal: on='key'")
    left, right = sides
    schemas = known_columns(registry.plan_so_far)
    join = Join(
        keys=keys,
        within=_within(operator_id, within),
        how=how,
        left=schemas[left.source],
        right=schemas[right.source],
        time_zone=event_time_zone(registry, left.upstream),
        allowed_lateness_ns=_lateness(operator_id, allowed_lateness),
    )
    add_stream_join(
        registry,
        operator_id,
        "join",
        join,
        sides,
        (_keyed(left, LEFT, join.left_keys), _keyed(right, RIGHT, join.right_keys)),
        parallelism,
        declared_state=("rows of both sides",),
        event_time_order=False,
        order_reason="rows join as they come",
    )
    return operator_id


def _keyed(side: Input, port: int, keys: tuple[str, ...]) -> Input:
    return replace(side, port=port, grouping=Key(keys), on_null_key="keep")


def _within(operator_id: str, within: object) -> TimeWindow | SessionWindow | TimeInterval:
    if isinstance(within, TimeInterval):
        return within
    if not isinstance(within, (TimeWindow, SessionWindow)):
        raise mistake(operator_id, f"within is {describe_value(within)}: pass {_EXAMPLE}")
    if isinstance(within, TimeWindow) and within.by_clock:
        raise mistake(
            operator_id,
            "both sides of a join go by their event times, not by the clock: leave out"
            " processing_time(), within=whale.window('12 hours')",
        )
    if within.column:
        raise mistake(
            operator_id,
            f"the window is over {within.column!r}, but both sides of a join go by their event"
            f" times: leave out the column, within={_call(within)}",
        )
    return within


def _call(within: TimeWindow | SessionWindow) -> str:
    if isinstance(within, SessionWindow):
        return "whale.session_window('12 hours')"
    return "whale.window('12 hours'), or whale.window('12 hours', slide='1 hour')"


def _lateness(operator_id: str, given: object) -> int:
    try:
        found = duration_ns(given, "allowed_lateness")
    except InputError as error:
        raise mistake(operator_id, str(error)) from None
    if found < 0:
        raise mistake(operator_id, f"allowed_lateness is {given!r}: it must not be negative")
    return found
