"""The streams of smaller applications, by their own generators: one file for each.

Rows are in the order of event time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ....applications.cluster_monitoring import generator as cluster
from ....applications.cluster_monitoring.replay import Replay
from ....applications.cluster_monitoring.settings import ClusterSettings
from ....applications.linear_road import generator as linear_road
from ....applications.linear_road.settings import LinearRoadSettings
from ....applications.read_only_count import generator as read_only
from ....applications.read_only_count.settings import ReadOnlySettings
from ....applications.taxi_regions import generator as taxi
from ....applications.taxi_regions.settings import TaxiSettings

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["EVENT_TIMES", "SECONDS", "ZIPF", "application_streams", "in_milliseconds"]

EVENT_TIMES: Mapping[str, str] = {
    "samples": "event_time",
    "records": "created",
    "zipf_records": "created",
    "trips": "pickup_time",
    "reports": "time_s",
}
"""Stream → its column of event times."""

SECONDS = frozenset({"reports"})
"""Streams whose event times are whole seconds, as numbers."""

ZIPF = 1.0
"""The exponent of the distribution of the keys of `zipf_records`."""

_SAMPLES_PER_JOB = 125
_REPORTS_PER_MINUTE = 2
_MINUTES = 30


def application_streams(events: int) -> dict[str, Iterator[pa.Table]]:
    """Return the rows of each stream, made when they are asked for.

    Args:
        events: how many records and trips; about as many CPU samples and position reports, these
            from as many expressways as need 30 minutes for them.
    """
    uniform = ReadOnlySettings(records=events)
    skewed = ReadOnlySettings(records=events, zipf=ZIPF)
    return {
        "samples": in_milliseconds(_samples(events), EVENT_TIMES["samples"]),
        "records": read_only.tables(uniform),
        "zipf_records": read_only.tables(skewed),
        "trips": in_milliseconds(taxi.tables(TaxiSettings(trips=events)), EVENT_TIMES["trips"]),
        "reports": linear_road.tables(_traffic(events)),
    }


def in_milliseconds(tables: Iterable[pa.Table], column: str) -> Iterator[pa.Table]:
    """Yield tables whose times are whole milliseconds, the last ones before those that were."""
    import pyarrow.compute as pc

    for table in tables:
        times: Any = pc.floor_temporal(table[column], unit="millisecond")
        yield table.set_column(table.schema.get_field_index(column), column, times)


def _samples(events: int) -> Iterator[pa.Table]:
    settings = ClusterSettings(jobs=max(1, events // _SAMPLES_PER_JOB))
    yield from Replay(cluster.job_events(settings), cluster.cpu_of_tasks(settings)).tables()


def _traffic(events: int) -> LinearRoadSettings:
    per_minute = LinearRoadSettings.vehicles * _REPORTS_PER_MINUTE
    expressways = -(-events // (per_minute * _MINUTES))
    minutes = max(1, events // (per_minute * expressways))
    return LinearRoadSettings(expressways=expressways, minutes=minutes)
