"""`whale-ray bench options-market`: the application's placements, stage by stage (Vega, V).

`placements` runs all that this machine has devices for at one rate; `highest` searches for each the
highest rate at which fewer than `MISSED_SHARE` of the messages are missed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from ....applications.options_market.contracts import ContractBook
from ....applications.options_market.generated import generated_contracts
from ....applications.options_market.placements import placements_here
from ....applications.options_market.report import describe_result
from ....applications.options_market.settings import (
    MESSAGES_MAX,
    MISSED_SHARE,
    OptionsMarketSettings,
)
from ....configs.errors import JobError
from ..plots import check_plots
from .comparing import describe_comparison, draw_comparison, render_comparison
from .highest_rate import highest_rate
from .measuring import MarketRun, measure

__all__ = ["PARTS", "Comparisons", "compare", "run"]

PARTS: Final = ("placements", "highest")

_COMMAND: Final = "whale-ray bench options-market"
_QUICK_SECONDS: Final = 1.0
#: Messages per second, between which the highest rate is searched.
_SEARCHED: Final = (10_000.0, 10_000_000.0)

AtRate = Callable[[OptionsMarketSettings], MarketRun]


@dataclass(frozen=True)
class Comparisons:
    """What the suite has measured: part → what `describe_comparison` returns."""

    parts: dict[str, dict[str, Any]]

    def render(self) -> str:
        """Return a table for each part."""
        return "\n\n".join(f"{name}: {render_comparison(of)}" for name, of in self.parts.items())

    def as_json(self) -> str:
        """Return one JSON object on one line."""
        return json.dumps({"suite": "options-market", "parts": self.parts})


def run(
    quick: bool = False,
    only: str | None = None,
    plots: Path | None = None,
    rate: float | None = None,
) -> Comparisons:
    """Measure.

    Args:
        quick: one second per run instead of five.
        only: one of `PARTS`; None: both.
        plots: the folder for a drawing of each part; None: none is drawn.
        rate: messages per second of the part "placements"; None: the application's default.

    Raises:
        SettingsError: the rate is out of range.
        ResourceError: plots cannot be drawn.
        JobError: a run was stopped, or the lowest rate was too high.
    """
    check_plots(plots)
    market = OptionsMarketSettings()
    if quick:
        market = replace(market, seconds=_QUICK_SECONDS)
    if rate is not None:
        market = replace(market, rate=rate)
    book = generated_contracts(seed=market.seed)
    parts = {}
    for part in PARTS if only is None else (only,):
        parts[part] = compare(book, market, is_highest=part == "highest")
        if plots is not None:
            draw_comparison(plots / part, parts[part])
    return Comparisons(parts)


def compare(
    book: ContractBook,
    market: OptionsMarketSettings,
    *,
    is_highest: bool = False,
    workers: int | None = None,
) -> dict[str, Any]:
    """Run all placements that this machine has devices for; see `describe_comparison`.

    Args:
        book: the contracts that are traded.
        market: load and duration; with `is_highest` the rate is ignored.
        is_highest: search for the highest rate of each placement.
        workers: workers of each placement; None: its default.
    """
    names, without = placements_here()
    runs = []
    for name in names:

        def at_rate(chosen: OptionsMarketSettings, name: str = name) -> MarketRun:
            sys.stderr.write(f"{_COMMAND}: {name}, {chosen.rate:,.0f} messages/s\n")
            measured = measure(book, chosen, name, workers=workers)
            if measured.state != "finished":
                msg = f"the run of {name!r} was stopped"
                raise JobError(msg)
            return measured

        chosen, measured = _at_highest(at_rate, market) if is_highest else (market, at_rate(market))
        runs.append(
            describe_result(
                command=_COMMAND,
                settings=chosen,
                more_settings={},
                placement=name,
                book=book,
                rows_rejected={},
                measured=measured,
                output=None,
            )
        )
    return describe_comparison(_COMMAND, runs, without)


def _at_highest(
    at_rate: AtRate, market: OptionsMarketSettings
) -> tuple[OptionsMarketSettings, MarketRun]:
    """Return the highest rate with almost no missed messages, and the run at this rate."""
    low, high = _SEARCHED
    found = highest_rate(
        lambda rate: at_rate(replace(market, rate=rate)),
        low,
        min(high, MESSAGES_MAX / market.seconds),
    )
    if found is None:
        msg = f"{MISSED_SHARE:.2%} of the messages or more is missed even at {low:,.0f} a second"
        raise JobError(msg)
    rate, run = found
    return replace(market, rate=rate), run
