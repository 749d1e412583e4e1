"""The three streams, as the queries read them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

from .settings import MAX_OUT_OF_ORDER_MS

if TYPE_CHECKING:
    from ...api.topology import Stream, Topology
    from ...operators.sources.base import Source

__all__ = ["Inputs"]


class Inputs:
    """The streams of persons, auctions and bids; a query gets those that it asks for.

    Args:
        topology: receives a source for each stream that a query reads.
        source_of: returns the source of "persons", "auctions" or "bids".
        parallelism: the number of instances of stateful operators; None is one per worker.
    """

    def __init__(
        self,
        topology: Topology,
        source_of: Callable[[str], Source],
        parallelism: int | None = None,
    ) -> None:
        self._topology = topology
        self._source_of = source_of
        self.parallelism = parallelism

    @cached_property
    def persons(self) -> Stream:
        """People who register."""
        return self._stream("persons")

    @cached_property
    def auctions(self) -> Stream:
        """Items that are put up for auction."""
        return self._stream("auctions")

    @cached_property
    def bids(self) -> Stream:
        """Bids on auctions."""
        return self._stream("bids")

    def _stream(self, name: str) -> Stream:
        return self._topology.source(
            self._source_of(name),
            id=name,
            event_time="date_time",
            max_out_of_order_ms=MAX_OUT_OF_ORDER_MS,
        )
