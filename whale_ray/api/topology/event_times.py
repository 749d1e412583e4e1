"""Checks of the arguments of `source` that are about event time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ...configs.errors import InputError
from ...operators.event_time import MAX_AHEAD_MS, EventTime, LatePolicy, Policy, Unit
from .checks import describe_value, mistake
from .known import KnownColumns, check_columns

if TYPE_CHECKING:
    from typing import Any

_ALONE: Mapping[str, object] = {
    "event_time_unit": None,
    "max_out_of_order_ms": 0,
    "on_late": "fail",
    "idle_after_ms": None,
    "max_ahead_ms": MAX_AHEAD_MS,
}
"""The arguments that have no effect without event times, with their defaults."""


def event_time_of(
    operator_id: str,
    column: object,
    known: KnownColumns | None,
    *,
    event_time_unit: Unit | None,
    max_out_of_order_ms: float,
    on_late: LatePolicy,
    on_bad_rows: Policy,
    idle_after_ms: float | None,
    max_ahead_ms: float | None,
) -> EventTime | None:
    """Return how a source assigns event times; None if `column` is, and it assigns none.

    Raises:
        TopologyError: an argument is not valid, or has no effect without event times.
    """
    given: dict[str, Any] = {
        "event_time_unit": event_time_unit,
        "max_out_of_order_ms": max_out_of_order_ms,
        "on_late": on_late,
        "idle_after_ms": idle_after_ms,
        "max_ahead_ms": max_ahead_ms,
    }
    if column is None:
        for name, default in _ALONE.items():
            if given[name] != default:
                raise mistake(
                    operator_id,
                    f"{name} has no effect without event times: add event_time='column'",
                )
        return None
    if not isinstance(column, str):
        raise mistake(
            operator_id, f"event_time is {describe_value(column)}: pass the name of a column"
        )
    for name in ("max_out_of_order_ms", "idle_after_ms", "max_ahead_ms"):
        if given[name] is not None or name == "max_out_of_order_ms":
            _check_milliseconds(operator_id, name, given[name])
    try:
        assigned = EventTime(
            column,
            max_out_of_order_ms,
            event_time_unit,
            on_late,
            on_bad_rows,
            idle_after_ms,
            max_ahead_ms,
        )
        check_columns(operator_id, "event_time", (column,), known)
        kind = (known or {}).get(column)
        if kind is not None:
            assigned.ns_per_tick(kind)
    except InputError as error:
        raise mistake(operator_id, str(error)) from None
    return assigned


def _check_milliseconds(operator_id: str, name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise mistake(operator_id, f"{name} is {describe_value(value)}: pass milliseconds")
