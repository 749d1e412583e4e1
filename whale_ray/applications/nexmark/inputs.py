"""The three streams, as the queries read them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..shared.benchmark import SourceOf
from .settings import MAX_OUT_OF_ORDER_MS

if TYPE_CHECKING:
    from ...api.topology import Stream, Topology

__all__ = ["Inputs"]

_EVENT_TIME = "date_time"


class Inputs:
    """The streams of persons, auctions and bids; a query reads those that it asks for, once each.

    `bids("auction", "price")` reads these columns and the event time; `bids()` reads all.

    Args:
        topology: receives a source for each stream that a query reads.
        source_of: returns the source of "persons", "auctions" or "bids", with the columns
            named, or with all of them for None.
        parallelism: the number of instances of stateful operators; None is one per worker.
    """

    def __init__(
        self,
        topology: Topology,
        source_of: SourceOf,
        parallelism: int | None = None,
    ) -> None:
        self._topology = topology
        self._source_of = source_of
        self.parallelism = parallelism

    def persons(self, *columns: str) -> Stream:
        """Read the people who register."""
        return self._stream("persons", columns)

    def auctions(self, *columns: str) -> Stream:
        """Read the items that are put up for auction."""
        return self._stream("auctions", columns)

    def bids(self, *columns: str) -> Stream:
        """Read the bids on auctions."""
        return self._stream("bids", columns)

    def _stream(self, name: str, columns: tuple[str, ...]) -> Stream:
        wanted = tuple(dict.fromkeys((*columns, _EVENT_TIME))) if columns else None
        return self._topology.source(
            self._source_of(name, wanted),
            id=name,
            event_time=_EVENT_TIME,
            max_out_of_order_ms=MAX_OUT_OF_ORDER_MS,
        )
