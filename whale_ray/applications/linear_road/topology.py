"""The application's topology.

::

    reports ─┬─ vehicles ─┬─ stops ─ accidents ─ nearest ──┐
             │            └─ entries ─────────── measured ─ warned ─ out
             └─ speeds ─ minutes ─ segments ─────┘
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ... import functions
from ...api.topology import Topology
from ...api.topology.functions import columns
from ...operators.expressions.expression import col, lit, when
from ...operators.joins.interval import interval
from ...operators.windows.specifications import window
from .accidents import Accidents
from .schemas import EXIT_LANE, POSITION
from .vehicles import VehicleMoves

if TYPE_CHECKING:
    from ...api.topology import Stream
    from ...operators.expressions.expression import Expression
    from ...operators.sinks.base import Sink
    from ...operators.sources.base import Source
    from ...transport.wire.batch import Batch

__all__ = ["APPLICATION", "build", "notifications"]

APPLICATION = "linear-road"

_NUMBERS = ("time_s", "vid", "speed_mph", "xway", "lane", "dir", "seg", "pos_ft")
_PLACE = ["xway", "dir", "seg"]
_PER_MINUTE = [*_PLACE, "minute"]
_LEAST_FREE_MPH, _MOST_FREE_CARS = 40, 50


def build(reports: Source, sink: Sink, *, parallelism: int | None = None) -> Topology:
    """Return the topology that tells a vehicle, as it enters a segment, the toll and accidents.

    Args:
        reports: `schemas.REPORTS`, in the order of time_s.
        sink: receives time_s, vid, xway, dir, seg, lav_mph (of the five minutes before; null if no
            vehicle was there), cars (of the minute before), toll, and accident_seg, the segment of
            the nearest accident ahead, or null.
        parallelism: the number of instances of stateful operators; None is one per worker.

    Raises:
        InputError: the input is missing, or lacks a column.
    """
    topology = Topology(APPLICATION)
    read = topology.source(reports, id="reports", event_time="time_s", event_time_unit="s")
    notifications(read, parallelism=parallelism).sink(sink, id="out")
    return topology


def notifications(reports: Stream, *, parallelism: int | None = None) -> Stream:
    """Return what vehicles are told as they enter a segment; arguments and columns as `build`."""
    positions = reports.filter(col("type") == POSITION, id="positions").select(
        *(col(name).cast("int64").alias(name) for name in _NUMBERS)
    )
    moves = positions.key_by("vid").process(VehicleMoves, id="vehicles", parallelism=parallelism)
    entries = (
        moves.filter((col("entered") == 1) & (col("lane") != EXIT_LANE), id="entries")
        .select("time_s", "vid", *_PLACE)
        .with_column("minute", _minute(col("time_s")))
    )
    measured = _known(entries, _segments(positions, parallelism), "measured", parallelism)
    warned = _known(measured, _warnings(moves, parallelism), "warned", parallelism)
    return _tolls(warned)


def _segments(positions: Stream, parallelism: int | None) -> Stream:
    """Return LAV and the number of cars of each segment, for the minute that begins."""
    speeds = positions.group_by(window("time_s", "1 minute"), *_PLACE, "vid").agg(
        functions.avg("speed_mph").alias("speed_mph"), id="speeds", parallelism=parallelism
    )
    minutes = speeds.group_by("window_start", "window_end", *_PLACE).agg(
        functions.avg("speed_mph").alias("speed_mph"),
        functions.count().alias("cars"),
        id="minutes",
        parallelism=parallelism,
    )
    segments = minutes.group_by(window("window_end", "5 minutes", "1 minute"), *_PLACE).agg(
        functions.avg("speed_mph").alias("lav_mph"),
        functions.max("window_end").alias("last"),
        functions.max_by("cars", "window_end").alias("last_cars"),
        id="segments",
        parallelism=parallelism,
    )
    return segments.select(
        *_PLACE,
        _minute(functions.unix_seconds("window_end")).alias("minute"),
        "lav_mph",
        when(col("last") == col("window_end"), col("last_cars")).otherwise(lit(0)).alias("cars"),
    )


def _warnings(moves: Stream, parallelism: int | None) -> Stream:
    """Return how far the nearest accident ahead is, for each minute and segment that has one."""
    stops = moves.filter(col("change") != 0, id="stops")
    accidents = stops.key_by("stop_xway", "stop_dir", "stop_lane", "stop_ft").process(
        Accidents, id="accidents", parallelism=parallelism
    )
    # A join that makes nulls wants to know types before the start, which a process cannot tell.
    typed = accidents.map(columns(_as_they_are), schema=Accidents.schema)
    nearest = typed.group_by(window("minute", "1 minute"), *_PER_MINUTE).agg(
        functions.min("distance").alias("distance"), id="nearest", parallelism=parallelism
    )
    return nearest.select(*_PER_MINUTE, "distance")


def _known(entries: Stream, facts: Stream, id: str, parallelism: int | None) -> Stream:
    """Return entries with what is known, as their minute begins, of their segments; or nulls."""
    return entries.join(
        facts,
        on=_PER_MINUTE,
        within=interval("-1 minute", "0 s"),
        how="left",
        id=id,
        parallelism=parallelism,
    )


def _tolls(entries: Stream) -> Stream:
    """Return the notifications: tolls are due where it is slow and full, and no accident ahead."""
    cars = functions.coalesce("cars", lit(0))
    is_due = (
        (col("lav_mph") < _LEAST_FREE_MPH) & (cars > _MOST_FREE_CARS) & col("distance").is_null()
    )
    over = cars - _MOST_FREE_CARS
    ahead = when(col("dir") == 0, col("seg") + col("distance")).otherwise(
        col("seg") - col("distance")
    )
    return entries.select(
        "time_s",
        "vid",
        *_PLACE,
        "lav_mph",
        cars.alias("cars"),
        when(is_due, over * over * 2).otherwise(lit(0)).alias("toll"),
        ahead.alias("accident_seg"),
    )


def _as_they_are(batch: Batch) -> Batch:
    return batch


def _minute(seconds: Expression) -> Expression:
    return functions.floor(seconds / 60).cast("int64")
