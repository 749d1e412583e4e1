"""The application's topology.

::

    orders ─ valid ─ split ─ to all ─ match × 16 ─┬─ fills
                                                  └─ by symbol and second ─ volume × 4
                                                       └─ by symbol ─ total × 4 ─ volumes
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...api.topology import Topology, columns
from .matcher import OrderMatcher
from .settings import StockExchangeSettings
from .splitting import is_valid, split
from .volume import add_volume

if TYPE_CHECKING:
    from ...operators.sinks.base import Sink
    from ...operators.sources.base import Source

__all__ = ["APPLICATION", "build"]

APPLICATION = "stock-exchange"


def build(
    orders: Source, fills: Sink, volumes: Sink, settings: StockExchangeSettings | None = None
) -> Topology:
    """Return the topology that matches orders and adds up the trading volume.

    Orders reach the books in the order in which they were read, since there is one source instance
    and channels keep the order. So the exchange's own sequence applies, which is finer than event
    time.

    Args:
        orders: rows of `schemas.ORDERS`, in the exchange's sequence, which sorts by event_time.
        fills: receives rows of `schemas.FILLS`.
        volumes: receives rows of `schemas.VOLUMES`.
        settings: numbers of instances.

    Raises:
        InputError: an input is missing or lacks a column.
    """
    settings = settings or StockExchangeSettings()
    topology = Topology(APPLICATION)
    records = topology.source(orders, id="orders", event_time="event_time")
    valid = records.filter(columns(is_valid), id="valid").map(columns(split), id="split")
    made = valid.broadcast().process(
        OrderMatcher,
        id="match",
        parallelism=settings.matching_instances,
        event_time_order=False,
    )
    made.sink(fills, id="fills")
    add_volume(made, settings.volume_instances).sink(volumes, id="volumes")
    return topology
