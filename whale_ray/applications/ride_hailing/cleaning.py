"""The rules by which input rows are rejected, as SQL for Spark and DuckDB.

A row either passes or is counted under the first rule that applies to it. NaN has a rule of its
own, since SQL sorts it above all numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "OUTSIDE_SPAN",
    "POSITION_ORDER",
    "POSITION_RULES",
    "REQUEST_ORDER",
    "REQUEST_RULES",
    "Rule",
    "judged_positions_sql",
    "judged_requests_sql",
]


@dataclass(frozen=True)
class Rule:
    """One reason to reject a row."""

    reason: str
    """Text for the report; without quotes, since it is put into SQL."""
    condition: str
    """SQL that is true for a row to reject."""


POSITION_RULES = (
    Rule("null vehicle_id", "vehicle_id IS NULL"),
    Rule("null event_time", "event_time IS NULL"),
    Rule("null coordinates", "lat_e5 IS NULL OR lon_e5 IS NULL"),
    Rule("null occupied", "occupied IS NULL"),
    Rule(
        "coordinates out of range",
        "lat_e5 NOT BETWEEN -9000000 AND 9000000 OR lon_e5 NOT BETWEEN -18000000 AND 18000000",
    ),
)
OUTSIDE_SPAN = "outside the time span of the positions"
_REPEATED = "repeated request_id"
REQUEST_RULES = (
    Rule("null request_id", "request_id IS NULL"),
    Rule("null request_time", "request_time IS NULL"),
    Rule("null coordinates", "pickup_lat IS NULL OR pickup_lon IS NULL"),
    Rule("NaN coordinates", "isnan(pickup_lat) OR isnan(pickup_lon)"),
    Rule(
        "coordinates out of range",
        "pickup_lat NOT BETWEEN -90 AND 90 OR pickup_lon NOT BETWEEN -180 AND 180",
    ),
)

#: Total orders: except for equal rows, the order within the input file has no effect.
POSITION_ORDER = "event_time NULLS LAST, vehicle_id, lat_e5, lon_e5, occupied"
REQUEST_ORDER = "request_time, request_id"


def judged_positions_sql(positions: str, limit: int | None = None) -> str:
    """Return a query for the positions and a column `reason`, which is null for rows that pass.

    Args:
        positions: name of the table.
        limit: greatest number of rows, the earliest ones are taken; None takes all.
    """
    first = "" if limit is None else f"ORDER BY {POSITION_ORDER} LIMIT {limit}"
    return f"""
SELECT vehicle_id, event_time, lat_e5, lon_e5, occupied, {_reason(POSITION_RULES)} AS reason
FROM (SELECT * FROM {positions} {first}) AS taken
"""


def judged_requests_sql(requests: str, first: str, last: str) -> str:
    """Return a query for the requests and a column `reason`, which is null for rows that pass.

    Of several requests with the same id, the earliest passes.

    Args:
        requests: name of the table.
        first: SQL for the earliest event time of the positions.
        last: SQL for the latest one.
    """
    return f"""
SELECT request_id, request_time, pickup_lat, pickup_lon,
       CASE WHEN reason IS NOT NULL THEN reason
            WHEN ROW_NUMBER() OVER (PARTITION BY request_id, reason
                                    ORDER BY request_time, pickup_lat, pickup_lon) > 1
              THEN '{_REPEATED}'
            WHEN request_time < {first} OR request_time > {last} THEN '{OUTSIDE_SPAN}'
       END AS reason
FROM (SELECT *, {_reason(REQUEST_RULES)} AS reason FROM {requests}) AS judged
"""


def _reason(rules: tuple[Rule, ...]) -> str:
    cases = " ".join(f"WHEN {rule.condition} THEN '{rule.reason}'" for rule in rules)
    return f"CASE {cases} END"
