"""The application's topology.

::

    events ─ views ─ campaigns ─ by campaign and window ─ counts ─ out
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from ... import functions
from ...api.topology import Topology
from ...api.topology.functions import columns
from ...configs.errors import InputError
from ...operators.expressions.expression import col
from ...operators.windows.specifications import window as time_window
from ...transport.wire.batch import Batch
from .generator import ADS_SCHEMA

if TYPE_CHECKING:
    from ...api.topology import Stream
    from ...operators.sinks.base import Sink
    from ...operators.sources.base import Source
    from ...operators.windows.durations import Duration

__all__ = ["APPLICATION", "CampaignOfAd", "build", "count_views"]

APPLICATION = "yahoo"


class CampaignOfAd:
    """Looks the campaign of each row's advertisement up in a table that every worker has."""

    def __init__(self, ads: pa.Table) -> None:
        """Take `ad_id` and `campaign_id`; raises InputError if an advertisement is there twice."""
        table = ads.select(ADS_SCHEMA.names).cast(ADS_SCHEMA).combine_chunks()
        self._ads, self._campaigns = (table[name].combine_chunks() for name in ADS_SCHEMA.names)
        if pc.count_distinct(self._ads, mode="all").as_py() < len(self._ads):
            msg = "ads: an ad_id is there twice: give each advertisement one campaign"
            raise InputError(msg)

    def __call__(self, batch: Batch) -> Batch:
        """Return event_time and campaign_id, which is null for an unknown advertisement."""
        rows = batch.to_arrow()
        found = pc.index_in(rows["ad_id"], value_set=self._ads, skip_nulls=True)
        return Batch.from_arrow(
            pa.RecordBatch.from_arrays(
                [rows["event_time"], self._campaigns.take(found)], ["event_time", "campaign_id"]
            )
        )


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
    joined = views.map(
        columns(CampaignOfAd(ads)),
        id="campaigns",
        schema={"event_time": "timestamp[ms]", "campaign_id": "string"},
    ).filter(col("campaign_id").is_not_null())
    return joined.group_by(time_window("event_time", window), "campaign_id").agg(
        functions.count().alias("views"), id="counts", parallelism=parallelism
    )
