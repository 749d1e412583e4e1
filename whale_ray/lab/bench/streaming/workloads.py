"""The workloads: as a topology, and as a query for engines that take SQL."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ....applications.nexmark.inputs import Inputs
from ....applications.nexmark.queries import QUERIES
from ....operators.keyed.keyed_process import KeyedProcess
from ....state import declarations as state

if TYPE_CHECKING:
    from ....api.topology import Stream
    from ....operators.process import Output
    from ....transport.wire.batch import Batch

__all__ = ["WORKLOADS", "Workload", "workload_named"]


class SpentOnRows(KeyedProcess):
    """Emits for every bid how many its bidder has made so far, and for how much."""

    bids = state.count()
    spent = state.sum("int64")

    def on_row(self, row: Any, out: Output) -> None:
        """Add one bid."""
        self.bids.add(1)
        self.spent.add(row.price)
        out.emit_row(
            bidder=row.bidder,
            bids=self.bids.get(),
            spent=self.spent.get(),
        )


class SpentOnColumns(KeyedProcess):
    """Emits for every bid what its bidder has bid up to the end of the batch."""

    bids = state.count()
    spent = state.sum("int64")

    def on_batch(self, batch: Batch, out: Output) -> None:
        """Add a batch of bids."""
        slots = self.slots(batch)
        bids: Any = self.bids
        spent: Any = self.spent
        bidders, place = np.unique(slots, return_inverse=True)
        sums = np.zeros(len(bidders), np.int64)
        np.add.at(sums, place, batch["price"])
        bids[bidders] += np.bincount(place)
        spent[bidders] += sums
        out.emit({"bidder": batch["bidder"], "bids": bids[slots], "spent": spent[slots]})


@dataclass(frozen=True)
class Workload:
    """One workload over the bids."""

    name: str
    build: Callable[[Stream], Stream]
    key: str
    """The column by which state is kept."""
    sql: str
    """The same for DuckDB, over `bids`, a table with `file_row_number`."""
    timed: bool = True
    """Whether it needs event time; else rows are taken as they come."""
    window_s: int | None = None
    """How long a row counts; None: for ever."""
    columns: tuple[str, ...] = ()
    """Those that it reads beside `key` and, if it is timed, `date_time`."""
    drops: bool = False
    """Whether it has a result for every row: then a filter drops them all."""


def _tumbling(bids: Stream) -> Stream:
    from .... import functions
    from ....operators.windows.specifications import window

    grouped = bids.group_by(window("date_time", "10 seconds"), "auction")
    return grouped.agg(functions.count().alias("bids"), id="windows")


def _hopping(bids: Stream) -> Stream:
    from .... import functions
    from ....operators.windows.specifications import window

    grouped = bids.group_by(window("date_time", "10 seconds", "2 seconds"), "auction")
    return grouped.agg(functions.count().alias("bids"), id="windows")


def _sessions(bids: Stream) -> Stream:
    from .... import functions
    from ....operators.windows.specifications import session_window

    grouped = bids.group_by(session_window("date_time", "10 seconds"), "bidder")
    return grouped.agg(functions.count().alias("bids"), id="windows")


class OnlyBids(Inputs):
    """The inputs of a query of NEXMark that reads bids alone."""

    def __init__(self, bids: Stream) -> None:
        """Take the stream of bids, in place of a source."""
        self.parallelism = None
        self._given = bids

    def bids(self, *columns: str) -> Stream:
        """Return the stream, which has the columns that the query asks for."""
        del columns
        return self._given


_SPENT_SQL = (
    "SELECT bidder, count(*) OVER so_far AS bids, CAST(sum(price) OVER so_far AS BIGINT) AS spent"
    " FROM bids WINDOW so_far AS (PARTITION BY bidder ORDER BY file_row_number"
    " ROWS UNBOUNDED PRECEDING)"
)

WORKLOADS = (
    Workload(
        "keyed row process, two handles",
        lambda bids: bids.key_by("bidder").process(SpentOnRows, id="spent"),
        "bidder",
        _SPENT_SQL,
        timed=False,
        columns=("price",),
        drops=True,
    ),
    Workload(
        "keyed column process, two handles",
        lambda bids: bids.key_by("bidder").process(SpentOnColumns, id="spent"),
        "bidder",
        _SPENT_SQL,
        timed=False,
        columns=("price",),
        drops=True,
    ),
    Workload(
        "tumbling window, count per auction",
        _tumbling,
        "auction",
        "SELECT auction, time_bucket(INTERVAL 10 SECONDS, date_time) AS window_start,"
        " count(*) AS bids FROM bids GROUP BY ALL",
        window_s=10,
    ),
    Workload(
        "hopping window, count per auction",
        _hopping,
        "auction",
        "SELECT auction, first + INTERVAL 2 SECONDS * hop - INTERVAL 8 SECONDS AS window_start,"
        " CAST(sum(bids) AS BIGINT) AS bids FROM (SELECT auction,"
        " time_bucket(INTERVAL 2 SECONDS, date_time) AS first, count(*) AS bids"
        " FROM bids GROUP BY ALL), range(5) AS hops(hop) GROUP BY ALL",
        window_s=10,
    ),
    Workload(
        "NEXMark 5, hot items",
        lambda bids: QUERIES["5"](OnlyBids(bids)),
        "auction",
        "FROM (SELECT auction, first - INTERVAL 2 SECONDS * hop AS window_start,"
        " CAST(sum(bids) AS BIGINT) AS num FROM (SELECT auction,"
        " time_bucket(INTERVAL 2 SECONDS, date_time) AS first, count(*) AS bids"
        " FROM bids GROUP BY ALL), range(5) AS hops(hop) GROUP BY ALL)"
        " QUALIFY num = max(num) OVER (PARTITION BY window_start)",
        window_s=10,
    ),
    Workload(
        "NEXMark 7, highest bid",
        lambda bids: QUERIES["7"](OnlyBids(bids)),
        "auction",
        "SELECT auction, price, bidder, date_time, extra FROM bids JOIN ("
        "SELECT time_bucket(INTERVAL 10 SECONDS, date_time) AS start, max(price) AS highest"
        " FROM bids GROUP BY ALL)"
        " ON price = highest AND time_bucket(INTERVAL 10 SECONDS, date_time) = start",
        window_s=10,
        columns=("price", "bidder", "extra"),
    ),
    Workload(
        "NEXMark 11, sessions per bidder",
        _sessions,
        "bidder",
        "SELECT bidder, min(date_time) AS window_start, count(*) AS bids FROM ("
        "SELECT *, sum(starts) OVER (PARTITION BY bidder ORDER BY date_time) AS session FROM ("
        "SELECT *, CAST(date_time - lag(date_time) OVER (PARTITION BY bidder ORDER BY date_time)"
        " > INTERVAL 10 SECONDS AS INT) AS starts FROM bids))"
        " GROUP BY bidder, coalesce(session, 0)",
        window_s=10,
    ),
)


def workload_named(name: str) -> Workload:
    """Return a workload; raises KeyError for an unknown name."""
    return {one.name: one for one in WORKLOADS}[name]
