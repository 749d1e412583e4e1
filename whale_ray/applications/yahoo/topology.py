"""The application's topology.

::

    events ─ views ─ campaigns ─ by campaign and window ─ counts ─ out
    ads ───── all ──────┘
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from ... import functions
from ...api.topology import Topology
from ...configs.errors import InputError
from ...operators.expressions.expression import col
from ...operators.windows.specifications import window as time_window
from .generator import ADS_SCHEMA

if TYPE_CHECKING:
    from ...api.topology import Stream
    from ...operators.sinks.base import Sink
    from ...operators.sources.base import Source
    from ...operators.windows.durations import Duration

__all__ = ["APPLICATION", "build", "count_views"]

APPLICATION = "yahoo"


def build(
    events: Source,
    ads: pa.Table,
    sink: Sink,
    *,
    window: Duration = "10 seconds",
    parallelism: int | None = None,
) -> Topology:
    """Return the topology that counts the views of each campaign in each window.

    Args:
        events: ad_id, event_type, event_time, in the order of event_time.
        ads: ad_id, campaign_id; views of other advertisements are left out.
        sink: receives window_start, window_end, campaign_id, views.
        window: the length of the windows; the benchmark has 10 s.
        parallelism: the number of instances that count; None is one per worker.

    Raises:
        InputError: an input is missing, or lacks a column; an advertisement is there twice.
    """
    topology = Topology(APPLICATION)
    stream = topology.source(events, id="events", event_time="event_time")
    count_views(stream, ads, window=window, parallelism=parallelism).sink(sink, id="out")
    return topology


def count_views(
    events: Stream,
    ads: pa.Table,
    *,
    window: Duration = "10 seconds",
    parallelism: int | None = None,
) -> Stream:
    """Return the views of each campaign in each window; arguments, columns, errors as `build`."""
    views = events.filter(col("event_type") == "view", id="views").select("ad_id", "event_time")
    joined = views.join_table(_campaign_of_ads(ads), on="ad_id", id="campaigns")
    return (
        joined.select("event_time", "campaign_id")
        .group_by(time_window("event_time", window), "campaign_id")
        .agg(functions.count().alias("views"), id="counts", parallelism=parallelism)
    )


def _campaign_of_ads(ads: pa.Table) -> pa.Table:
    """Return `ad_id` and `campaign_id`; raises InputError if an advertisement is there twice."""
    table = ads.select(ADS_SCHEMA.names).cast(ADS_SCHEMA)
    if pc.count_distinct(table["ad_id"], mode="all").as_py() < len(table):
        msg = "ads: an ad_id is there twice: give each advertisement one campaign"
        raise InputError(msg)
    return table
