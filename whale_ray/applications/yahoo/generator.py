"""A seeded generator of the benchmark's events and of its table of advertisements.

Of every event the advertisement, the user, the page and the kind (view, click, purchase) are drawn
uniformly, the advertisement on request by Zipf's distribution; events are as far apart as their
rate says, in order.
It follows the offline generator of github.com/yahoo/streaming-benchmarks, whose texts are JSON;
here they are columns.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from ..shared.generated_file import write_stream
from ..shared.zipf import zipf_ranks
from .settings import YahooSettings

__all__ = ["ADS_SCHEMA", "EVENTS_SCHEMA", "ads_table", "event_tables", "generate"]

ADS_SCHEMA = pa.schema({"ad_id": pa.string(), "campaign_id": pa.string()})
EVENTS_SCHEMA = pa.schema(
    {
        "user_id": pa.string(),
        "page_id": pa.string(),
        "ad_id": pa.string(),
        "ad_type": pa.string(),
        "event_type": pa.string(),
        "event_time": pa.timestamp("ms"),
        "ip_address": pa.string(),
    }
)

_ADS_PER_CAMPAIGN = 10
_USERS = _PAGES = 100
_AD_TYPES = pa.array(["banner", "modal", "sponsored-search", "mail", "mobile"])
_EVENT_TYPES = pa.array(["view", "click", "purchase"])
_IP_ADDRESSES = pa.array(["1.2.3.4"])
_START_MS = 1_436_918_400_000  # 2015-07-15 00:00:00 UTC
_CHUNK_EVENTS = 500_000


def ads_table(settings: YahooSettings) -> pa.Table:
    """Return the advertisements, `ADS_SCHEMA`: ten in a row belong to one campaign."""
    ads, campaigns, _, _ = _identifiers(settings)
    of_ad = np.arange(len(ads)) // _ADS_PER_CAMPAIGN
    return pa.table({"ad_id": ads, "campaign_id": campaigns.take(of_ad)}, schema=ADS_SCHEMA)


def event_tables(settings: YahooSettings) -> Iterator[pa.Table]:
    """Yield the events, `EVENTS_SCHEMA`, in parts."""
    ads, _, users, pages = _identifiers(settings)
    for chunk, start in enumerate(range(0, settings.events, _CHUNK_EVENTS)):
        count = min(_CHUNK_EVENTS, settings.events - start)
        random = np.random.default_rng((settings.seed, chunk))
        drawn = [
            values.take(zipf_ranks(random, count, len(values), zipf))
            for values, zipf in (
                (users, 0.0),
                (pages, 0.0),
                (ads, settings.zipf),
                (_AD_TYPES, 0.0),
                (_EVENT_TYPES, 0.0),
            )
        ]
        numbers = np.arange(start, start + count, dtype=np.int64)
        times = _START_MS + numbers * 1_000 // settings.events_per_s
        addresses = _IP_ADDRESSES.take(np.zeros(count, np.int64))
        yield pa.table([*drawn, times, addresses], schema=EVENTS_SCHEMA)


def generate(folder: str | Path, settings: YahooSettings | None = None) -> Path:
    """Write events.parquet into a folder, which is made if need be; return the file's path.

    Memory: 500,000 events. A file of that name is replaced.
    """
    return write_stream(folder, "events", EVENTS_SCHEMA, event_tables(settings or YahooSettings()))


def _identifiers(settings: YahooSettings) -> tuple[pa.Array, pa.Array, pa.Array, pa.Array]:
    """Return the ids of advertisements, campaigns, users and pages."""
    random = np.random.default_rng(settings.seed)
    counts = (settings.campaigns * _ADS_PER_CAMPAIGN, settings.campaigns, _USERS, _PAGES)
    ads, campaigns, users, pages = (
        pa.array([str(uuid.UUID(bytes=random.bytes(16), version=4)) for _ in range(count)])
        for count in counts
    )
    return ads, campaigns, users, pages
