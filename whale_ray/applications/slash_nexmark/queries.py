"""The three queries; the thesis leaves out what NB7 aggregates, and the gap of NB11's sessions.

NB7 has the highest price of each auction, and NB11 the gap of NEXMark's query 11, 10 s.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from ... import functions
from ...api.topology import Topology
from ...operators.windows.specifications import session_window, window

if TYPE_CHECKING:
    from ...api.topology import Stream
    from ...operators.sinks.base import Sink
    from ..shared.benchmark import SourceOf

__all__ = ["QUERIES", "build"]

_EVENT_TIME = "date_time"


class AuctionSite:
    """The streams of sellers, auctions and bids; a query reads those that it asks for.

    Args:
        topology: receives a source for each stream that a query reads.
        source_of: returns the source of a stream, with the columns named.
        parallelism: the number of instances of stateful operators; None is one per worker.
    """

    def __init__(self, topology: Topology, source_of: SourceOf, parallelism: int | None) -> None:
        self._topology = topology
        self._source_of = source_of
        self.parallelism = parallelism

    def read(self, name: str, *columns: str) -> Stream:
        """Read some columns of a stream, and the event time."""
        source = self._source_of(name, (*columns, _EVENT_TIME))
        return self._topology.source(source, id=name, event_time=_EVENT_TIME)


def _nb7(streams: AuctionSite) -> Stream:
    """Return the highest price of each auction in each 60 s."""
    bids = streams.read("bids", "auction", "price")
    return bids.group_by(window(_EVENT_TIME, "60 seconds"), "auction").agg(
        functions.max("price").alias("highest"), id="highest", parallelism=streams.parallelism
    )


def _nb8(streams: AuctionSite) -> Stream:
    """Return the auctions of those sellers who have registered in the same 12 hours."""
    auctions = streams.read("auctions", "id", "seller", "extra")
    sellers = streams.read("sellers", "id", "extra")
    return auctions.select("seller", functions.col("id").alias("auction"), "extra").join(
        sellers.select(functions.col("id").alias("seller"), functions.col("extra").alias("about")),
        on="seller",
        within=window("12 hours"),
        id="new-sellers",
        parallelism=streams.parallelism,
    )


def _nb11(streams: AuctionSite) -> Stream:
    """Return the bids with their seller, where both are in one session of the seller."""
    bids = streams.read("bids", "seller", "auction", "price")
    sellers = streams.read("sellers", "id", "extra")
    return bids.select("seller", "auction", "price").join(
        sellers.select(functions.col("id").alias("seller"), functions.col("extra").alias("about")),
        on="seller",
        within=session_window("10 seconds"),
        id="sessions",
        parallelism=streams.parallelism,
    )


QUERIES: Mapping[str, Callable[[AuctionSite], Stream]] = MappingProxyType(
    {"nb7": _nb7, "nb8": _nb8, "nb11": _nb11}
)
"""The name of a query → the function that adds it, and returns its result."""


def build(query: str, source_of: SourceOf, sink: Sink, parallelism: int | None = None) -> Topology:
    """Return the topology of a query.

    Args:
        query: one of `QUERIES`.
        source_of: returns the source of "sellers", "auctions" or "bids".
        sink: receives the query's result.
        parallelism: the number of instances of each stateful operator; None is one per worker.
    """
    topology = Topology("slash-nexmark")
    QUERIES[query](AuctionSite(topology, source_of, parallelism)).sink(sink, id="out")
    return topology
