"""Which input rows cannot be used, as SQL that Spark and DuckDB both understand.

Every row either passes or is counted under the first reason that applies to it. NaN is a reason of
its own, since in SQL it is a number, and greater than all others.
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
    """As it is reported; without quotes."""
    condition: str
    """SQL; true where the row is to be rejected."""


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

#: Total orders: equal rows apart, the input's own order never matters.
POSITION_ORDER = "event_time NULLS LAST, vehicle_id, lat_e5, lon_e5, occupied"
REQUEST_ORDER = "request_time, request_id"


def judged_positions_sql(positions: str, limit: int | None = None) -> str:
    """Return the query for the positions' columns and `reason`, null where a row passes.

    Args:
        positions: the table.
        limit: take only so many rows, the earliest ones.
    """
    first = "" if limit is None else f"ORDER BY {POSITION_ORDER} LIMIT {limit}"
    return f"""
SELECT vehicle_id, event_time, lat_e5, lon_e5, occupied, {_reason(POSITION_RULES)} AS reason
FROM (SELECT * FROM {positions} {first}) AS taken
"""


def judged_requests_sql(requests: str, first: str, last: str) -> str:
    """Return the query for the requests' columns that matter and `reason`, null where a row passes.

    Of requests with the same id the earliest passes.

    Args:
        requests: the table.
        first: SQL of the earliest event time of the positions.
        last: SQL of the latest one.
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
