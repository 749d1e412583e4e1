"""The workloads: as a topology, and as a query for DuckDB."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from ....applications.nexmark.inputs import Inputs
from ....applications.nexmark.queries import QUERIES
from ....applications.slash_nexmark.queries import QUERIES as SLASH_QUERIES
from ....applications.slash_nexmark.queries import AuctionSite
from ....applications.yahoo.topology import count_views
from ....operators.keyed.keyed_process import KeyedProcess
from .inputs import (
    ADS,
    AT_SAME_RATE,
    MAX_OUT_OF_ORDER_MS,
    bound_ms,
    event_time_of,
    stream_path,
)
from .keyed_processes import SpentCompiled, SpentOnColumns, SpentOnRows
from .mapped_files import mapped_path

if TYPE_CHECKING:
    from ....api.topology import Stream, Topology

__all__ = ["MAPPED", "MATRIX", "WORKLOADS", "FileStreams", "Part", "Workload", "workload_named"]

Part: TypeAlias = Literal["keyed", "windows", "nexmark", "slash", "yahoo"]


@dataclass(frozen=True)
class Workload:
    """One workload.

    Attributes:
        name: as the report has it.
        part: that of the suite which it belongs to.
        reads: the streams and their columns: the key first, then, if it is timed, the event time.
        build: adds it to the topology of the streams.
        sql: the same for DuckDB, over the streams' names and `ads`; `bids` has `file_row_number`.
        total: the column of the results that `Answer` adds up.
        key: the column by which state is kept, of the first stream; or `campaign_id`.
        timed: whether it needs event time; else rows are taken as they come.
        window_s: how long a row counts; None: for ever.
        drops: whether it has a result for every row: then they are only counted and added up.
        joins: whether it has no aggregate that could be merged late.
    """

    name: str
    part: Part
    reads: Mapping[str, tuple[str, ...]]
    build: Callable[[FileStreams], Stream]
    sql: str
    total: str
    key: str
    timed: bool = True
    window_s: int | None = 10
    drops: bool = False
    joins: bool = False


class FileStreams(Inputs):
    """The streams of a folder, with the columns that a workload reads.

    Args:
        topology: receives the sources.
        workload: what reads them.
        folder: has a file of each stream.
        max_out_of_order_ms: of the streams of NEXMark.
        on_late: of the sources.
        instances: how many share each file.
        mapped: whether to read what `map_streams` has written.
    """

    def __init__(
        self,
        topology: Topology,
        workload: Workload,
        folder: Path,
        *,
        max_out_of_order_ms: int = MAX_OUT_OF_ORDER_MS,
        on_late: Literal["fail", "drop", "pass"] = "fail",
        instances: int = 1,
        mapped: bool = False,
    ) -> None:
        self.parallelism = None
        self.folder = folder
        self._topology = topology
        self._workload = workload
        self._max_out_of_order_ms = max_out_of_order_ms
        self._on_late: Literal["fail", "drop", "pass"] = on_late
        self._instances = instances
        self._mapped = mapped

    def events(self) -> Stream:
        """Read Yahoo's events."""
        return self._stream("events", ())

    def auction_site(self) -> AuctionSite:
        """Return the streams of Slash's NEXMark, as its queries want them."""
        return _SlashStreams(self._topology, self._stream)

    def _stream(self, name: str, columns: tuple[str, ...]) -> Stream:
        from .... import sources

        name = name if name in self._workload.reads else f"{name}_{AT_SAME_RATE}"
        timed, columns = self._workload.timed, self._workload.reads[name]
        bounded = timed and bound_ms(name) > 0
        source = (
            sources.ipc(mapped_path(self.folder, name), columns=columns)
            if self._mapped
            else sources.parquet(stream_path(self.folder, name), columns=columns)
        )
        return self._topology.source(
            source,
            id=name,
            event_time=event_time_of(name) if timed else None,
            max_out_of_order_ms=self._max_out_of_order_ms if bounded else 0,
            on_late=self._on_late,
            parallelism=self._instances,
        )


class _SlashStreams(AuctionSite):
    """The streams that are called `nb_…` here."""

    def __init__(
        self, topology: Topology, stream_of: Callable[[str, tuple[str, ...]], Stream]
    ) -> None:
        self._topology = topology
        self._stream_of = stream_of
        self.parallelism = None

    def read(self, name: str, *columns: str) -> Stream:
        """See `AuctionSite.read`."""
        return self._stream_of(f"nb_{name}", columns)


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


def workload_named(name: str) -> Workload:
    """Return a workload; raises KeyError for an unknown name."""
    return {one.name: one for one in WORKLOADS}[name]
