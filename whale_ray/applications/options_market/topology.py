"""The application's topology.

::

    lines × feeds ─┬─ handlers ─ by contract ─ engines ─ all to one ─ collector ─ decisions
                   └─ ingest ─ ingest metrics

Fused, all stages run in one process: every line has its own handler, engine and collector, which
call one another directly. Each contract still belongs to one engine, since it is traded on one line
only.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from ...api.topology import Topology, columns
from .collector import Collector, MetricsCollector
from .contracts import ContractBook
from .engines import DecisionEngine, DecisionRule
from .handlers import FeedHandler, IngestMetrics
from .lines import FeedLines
from .schemas import DECIDED, DECISIONS, INGEST, TRADES, decisions_of
from .settings import OptionsMarketSettings

if TYPE_CHECKING:
    from ...operators.sinks.base import Sink

__all__ = ["APPLICATION", "build"]

APPLICATION = "options-market"


def build(
    book: ContractBook,
    decisions: Sink,
    ingest: Sink,
    settings: OptionsMarketSettings | None = None,
    *,
    fused: bool = False,
    unpacked: bool = False,
) -> Topology:
    """Return the topology that decides which options to buy and sell.

    Args:
        book: the contracts that are traded.
        decisions: receives rows of `schemas.DECIDED`.
        ingest: receives rows of `schemas.INGEST`, one per line.
        settings: message rate, duration, numbers of instances.
        fused: fuse all operators into one stage.
        unpacked: send `decisions` rows of `schemas.DECISIONS` instead, a column per field.

    Raises:
        InputError: there are more lines than contracts.
    """
    settings = settings or OptionsMarketSettings()
    feeds = settings.feeds
    topology = Topology(APPLICATION)
    lines = topology.source(FeedLines(book, settings), id="lines", parallelism=feeds)
    trades = lines.flat_map(columns(FeedHandler(feeds, len(book))), id="handlers", schema=TRADES)
    rule = partial(
        DecisionRule,
        np.ascontiguousarray(book.listed["right"]),
        np.ascontiguousarray(book.listed["strike_milli"]),
        settings.threshold_bp,
    )
    if fused:
        decided = trades.flat_map(columns(rule()), id="engines", schema=DECIDED)
        collected = decided.flat_map(columns(Collector()), id="collector", schema=DECIDED)
    else:
        # A single engine receives all rows anyway; a broadcast then saves the partitioning.
        one = settings.engines == 1
        decided = (trades.broadcast() if one else trades.key_by("contract")).process(
            partial(DecisionEngine, rule), id="engines", parallelism=settings.engines
        )
        collected = decided.broadcast().process(MetricsCollector, id="collector", parallelism=1)
    if unpacked:
        collected = collected.map(columns(decisions_of), id="unpack", schema=DECISIONS)
    collected.sink(decisions, id="decisions")
    counted = lines.flat_map(columns(IngestMetrics(feeds, len(book))), id="ingest", schema=INGEST)
    counted.sink(ingest, id="ingest-metrics")
    return topology
