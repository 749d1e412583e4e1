"""The workloads: as a topology, and as a query for DuckDB."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....applications.nexmark.queries import QUERIES
from ....applications.slash_nexmark.queries import QUERIES as SLASH_QUERIES
from ....applications.yahoo.topology import count_views
from ....operators.keyed.keyed_process import KeyedProcess
from .application_workloads import APPLICATIONS
from .inputs import ADS, AT_SAME_RATE, stream_path
from .keyed_processes import SpentCompiled, SpentOnColumns, SpentOnRows
from .workload import FileStreams, Workload

if TYPE_CHECKING:
    from ....api.topology import Stream

__all__ = ["CODED", "LONGER", "MAPPED", "MATRIX", "WORKLOADS", "workload_named"]


def _tumbling(streams: FileStreams) -> Stream:
    from .... import functions
    from ....operators.windows.specifications import window

    grouped = streams.bids().group_by(window("date_time", "10 seconds"), "auction")
    return grouped.agg(functions.count().alias("bids"), id="windows")


def _hopping(streams: FileStreams) -> Stream:
    from .... import functions
    from ....operators.windows.specifications import window

    grouped = streams.bids().group_by(window("date_time", "10 seconds", "2 seconds"), "auction")
    return grouped.agg(functions.count().alias("bids"), id="windows")


def _yahoo(streams: FileStreams) -> Stream:
    import pyarrow.parquet as pq

    return count_views(streams.events(), pq.read_table(stream_path(streams.folder, ADS)))


_SPENT_SQL = (
    "SELECT bidder, count(*) OVER so_far AS bids, CAST(sum(price) OVER so_far AS BIGINT) AS spent"
    " FROM bids WINDOW so_far AS (PARTITION BY bidder ORDER BY file_row_number"
    " ROWS UNBOUNDED PRECEDING)"
)


_NB11_SESSIONS = (
    "SELECT *, coalesce(sum(starts) OVER (PARTITION BY seller ORDER BY date_time), 0) AS session"
    " FROM (SELECT *, CAST(date_time - lag(date_time) OVER (PARTITION BY seller ORDER BY date_time)"
    " > INTERVAL 10 SECONDS AS INT) AS starts FROM"
    " (SELECT seller, date_time, auction, price, NULL AS extra FROM nb_bids UNION ALL"
    " SELECT id, date_time, NULL, NULL, extra FROM nb_sellers))"
)
"""Bids and sellers, with the number of the session among those of their seller."""


def _spent(name: str, process: type[KeyedProcess], *, total: str) -> Workload:
    return Workload(
        name,
        "keyed",
        {"bids": ("bidder", "price")},
        lambda streams: streams.bids().key_by("bidder").process(process, id="spent"),
        _SPENT_SQL,
        total=total,
        key="bidder",
        timed=False,
        window_s=None,
        drops=True,
    )


WORKLOADS = (
    _spent("keyed row process, two handles", SpentOnRows, total="bids"),
    _spent("keyed compiled process, two handles", SpentCompiled, total="bids"),
    _spent(
        "keyed column process, two handles", SpentOnColumns, total="bidder"
    ),  # its counts are those at the end of each batch
    Workload(
        "tumbling window, count per auction",
        "windows",
        {"bids": ("auction", "date_time")},
        _tumbling,
        "SELECT auction, time_bucket(INTERVAL 10 SECONDS, date_time) AS window_start,"
        " count(*) AS bids FROM bids GROUP BY ALL",
        total="bids",
        key="auction",
    ),
    Workload(
        "hopping window, count per auction",
        "windows",
        {"bids": ("auction", "date_time")},
        _hopping,
        "SELECT auction, first + INTERVAL 2 SECONDS * hop - INTERVAL 8 SECONDS AS window_start,"
        " CAST(sum(bids) AS BIGINT) AS bids FROM (SELECT auction,"
        " time_bucket(INTERVAL 2 SECONDS, date_time) AS first, count(*) AS bids"
        " FROM bids GROUP BY ALL), range(5) AS hops(hop) GROUP BY ALL",
        total="bids",
        key="auction",
    ),
    Workload(
        "NEXMark 0, all bids",
        "nexmark",
        {"bids": ("auction", "date_time", "bidder", "price", "extra")},
        QUERIES["0"],
        "SELECT auction, bidder, price, date_time, extra FROM bids",
        total="price",
        key="auction",
        drops=True,
        joins=True,
    ),
    Workload(
        "NEXMark 1, prices in euros",
        "nexmark",
        {"bids": ("auction", "date_time", "bidder", "price", "extra")},
        QUERIES["1"],
        "SELECT auction, bidder, price * 0.908::DOUBLE AS price, date_time, extra FROM bids",
        total="bidder",
        key="auction",
        drops=True,
        joins=True,
    ),
    Workload(
        "NEXMark 2, bids on some auctions",
        "nexmark",
        {"bids": ("auction", "date_time", "price")},
        QUERIES["2"],
        "SELECT auction, price FROM bids WHERE auction % 123 = 0",
        total="price",
        key="auction",
        drops=True,
        joins=True,
    ),
    Workload(
        "NEXMark 4, average of the highest bids",
        "nexmark",
        {
            "bids": ("auction", "date_time", "price"),
            f"auctions_{AT_SAME_RATE}": ("id", "date_time", "expires", "category"),
        },
        QUERIES["4"],
        "SELECT category, sum(final)::DOUBLE / count(*) AS avg_final FROM"
        " (SELECT id, category, max(price) AS final"
        f" FROM auctions_{AT_SAME_RATE} AS auction JOIN bids ON id = auction"
        " WHERE bids.date_time BETWEEN auction.date_time AND expires GROUP BY ALL) GROUP BY ALL",
        total="avg_final",
        key="auction",
        window_s=None,
        joins=True,
    ),
    Workload(
        "NEXMark 5, hot items",
        "nexmark",
        {"bids": ("auction", "date_time")},
        QUERIES["5"],
        "FROM (SELECT auction, first - INTERVAL 2 SECONDS * hop AS window_start,"
        " CAST(sum(bids) AS BIGINT) AS num FROM (SELECT auction,"
        " time_bucket(INTERVAL 2 SECONDS, date_time) AS first, count(*) AS bids"
        " FROM bids GROUP BY ALL), range(5) AS hops(hop) GROUP BY ALL)"
        " QUALIFY num = max(num) OVER (PARTITION BY window_start)",
        total="num",
        key="auction",
    ),
    Workload(
        "NEXMark 7, highest bid",
        "nexmark",
        {"bids": ("auction", "date_time", "price", "bidder", "extra")},
        QUERIES["7"],
        "SELECT auction, price, bidder, date_time, extra FROM bids JOIN ("
        "SELECT time_bucket(INTERVAL 10 SECONDS, date_time) AS start, max(price) AS highest"
        " FROM bids GROUP BY ALL)"
        " ON price = highest AND time_bucket(INTERVAL 10 SECONDS, date_time) = start",
        total="price",
        key="auction",
    ),
    Workload(
        "NEXMark 8, new users",
        "nexmark",
        {"persons": ("id", "date_time", "name"), "auctions": ("seller", "date_time")},
        QUERIES["8"],
        "SELECT id, name, time_bucket(INTERVAL 10 SECONDS, date_time) AS window_start"
        " FROM persons SEMI JOIN (SELECT seller, time_bucket(INTERVAL 10 SECONDS, date_time)"
        " AS start FROM auctions)"
        " ON id = seller AND time_bucket(INTERVAL 10 SECONDS, date_time) = start",
        total="id",
        key="id",
    ),
    Workload(
        "NEXMark 11, sessions per bidder",
        "nexmark",
        {"bids": ("bidder", "date_time")},
        QUERIES["11"],
        "SELECT bidder, min(date_time) AS window_start, count(*) AS bid_count FROM ("
        "SELECT *, sum(starts) OVER (PARTITION BY bidder ORDER BY date_time) AS session FROM ("
        "SELECT *, CAST(date_time - lag(date_time) OVER (PARTITION BY bidder ORDER BY date_time)"
        " > INTERVAL 10 SECONDS AS INT) AS starts FROM bids))"
        " GROUP BY bidder, coalesce(session, 0)",
        total="bid_count",
        key="bidder",
    ),
    Workload(
        "NB7, highest price per auction",
        "slash",
        {"nb_bids": ("auction", "date_time", "price")},
        lambda streams: SLASH_QUERIES["nb7"](streams.auction_site()),
        "SELECT auction, time_bucket(INTERVAL 60 SECONDS, date_time) AS window_start,"
        " max(price) AS highest FROM nb_bids GROUP BY ALL",
        total="highest",
        key="auction",
        window_s=60,
    ),
    Workload(
        "NB8, auctions of new sellers",
        "slash",
        {
            "nb_auctions": ("seller", "date_time", "id", "extra"),
            "nb_sellers": ("id", "date_time", "extra"),
        },
        lambda streams: SLASH_QUERIES["nb8"](streams.auction_site()),
        "SELECT auction.seller, auction.id AS auction, auction.extra, person.extra AS about,"
        " time_bucket(INTERVAL 12 HOURS, person.date_time) AS window_start"
        " FROM nb_auctions AS auction JOIN nb_sellers AS person ON auction.seller = person.id"
        " AND time_bucket(INTERVAL 12 HOURS, auction.date_time)"
        " = time_bucket(INTERVAL 12 HOURS, person.date_time)",
        total="auction",
        key="seller",
        window_s=43_200,
        drops=True,
        joins=True,
    ),
    Workload(
        "NB11, bids in sessions of sellers",
        "slash",
        {
            "nb_bids": ("seller", "date_time", "auction", "price"),
            "nb_sellers": ("id", "date_time", "extra"),
        },
        lambda streams: SLASH_QUERIES["nb11"](streams.auction_site()),
        "SELECT bid.seller, bid.auction, bid.price, person.extra AS about"
        f" FROM (FROM ({_NB11_SESSIONS}) WHERE price IS NOT NULL) AS bid"
        f" JOIN (FROM ({_NB11_SESSIONS}) WHERE price IS NULL) AS person USING (seller, session)",
        total="price",
        key="seller",
        window_s=None,
        drops=True,
        joins=True,
    ),
    Workload(
        "Yahoo, views per campaign",
        "yahoo",
        {"events": ("ad_id", "event_type", "event_time")},
        _yahoo,
        "SELECT campaign_id, time_bucket(INTERVAL 10 SECONDS, event_time) AS window_start,"
        " count(*) AS views FROM events JOIN ads USING (ad_id) WHERE event_type = 'view'"
        " GROUP BY ALL",
        total="views",
        key="campaign_id",
    ),
    *APPLICATIONS,
)


MATRIX = ("Yahoo, views per campaign", "NB8, auctions of new sellers")
"""The workloads that are run in every way, and with skewed keys."""

MAPPED = (
    *MATRIX,
    "NEXMark 5, hot items",
    "NEXMark 7, highest bid",
    "NEXMark 8, new users",
    "NEXMark 11, sessions per bidder",
)
"""The workloads that also read files that are mapped into memory, beside Flink on such files."""

CODED = ("Yahoo, views per campaign",)
"""Those of them that also read files whose texts, which have few values, are codes."""

LONGER = tuple(name for name in MAPPED if not name.startswith("NB8"))
"""Those of them that are also compared over more rows; a row of NB8's has 250 bytes of text."""


def workload_named(name: str) -> Workload:
    """Return a workload; raises KeyError for an unknown name."""
    return {one.name: one for one in WORKLOADS}[name]
