"""The report of a run of the application: one JSON object, and a short table for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..shared import report
from ..shared.report import Run
from .prepare import FillComparison
from .schemas import FILLS
from .settings import StockExchangeSettings
from .topology import APPLICATION

__all__ = ["Traded", "count_traded", "describe_result", "render_result"]


@dataclass(frozen=True)
class Traded:
    """Totals over all fills in the output."""

    fills: int
    """Number of fills."""
    auction_computed: int
    """Fills of auctions that the matching operator computed."""
    auction_applied: int
    """Fills of auctions that were applied as the exchange reported them."""
    qty: int
    """Shares traded."""
    value_milli: int
    """Value of the shares traded, in thousandths of the currency."""


def count_traded(path: str | None) -> Traded:
    """Add up a folder of fills, batch by batch; None counts as an output without fills."""
    import numpy as np
    import pyarrow.dataset as ds

    counts = {"AUCTION": 0, "APPLIED": 0, "": 0}
    qty = value_milli = 0
    columns = ["aggressor", "price_milli", "qty"]
    if path is not None:
        rows = ds.dataset(path, schema=FILLS.to_arrow(), format="parquet")
        for batch in rows.to_batches(columns=columns):
            for counted in batch["aggressor"].value_counts().to_pylist():
                kind = counted["values"] if counted["values"] in counts else ""
                counts[kind] += counted["counts"]
            qtys, prices = batch["qty"].to_numpy(), batch["price_milli"].to_numpy()
            qty += int(np.sum(qtys))
            value_milli += int(np.dot(qtys, prices))
    return Traded(sum(counts.values()), counts["AUCTION"], counts["APPLIED"], qty, value_milli)


def describe_result(
    run: Run,
    settings: StockExchangeSettings,
    *,
    traded: Traded,
    comparison: FillComparison | None,
    volume_rows: int,
    output: str,
) -> dict[str, Any]:
    """Return what `--json` prints.

    Args:
        run: the report that applications share; its latency is that of the sink of fills, and its
            streamed rows are orders, cancels and phases of trading.
        settings: settings of the application.
        traded: totals over the fills.
        comparison: comparison with the exchange's own fills in continuous trading; None if none
            was made.
        volume_rows: rows of volume, one per symbol and second with a fill.
        output: the folder of fills and volumes.
    """
    return {
        "application": APPLICATION,
        "command": run.command,
        "settings": {**asdict(settings), **run.more_settings},
        "rows_in": dict(run.rows_in),
        "rows_streamed": run.streamed,
        "rows_rejected": dict(run.rows_rejected),
        "rows_out": {"fills": traded.fills, "volumes": volume_rows},
        "compared": None if comparison is None else comparison.compared,
        "equal": None if comparison is None else comparison.equal,
        "surplus": None if comparison is None else comparison.surplus,
        "first_different_seq": None if comparison is None else comparison.first_different_seq,
        "auction_computed": traded.auction_computed,
        "auction_applied": traded.auction_applied,
        "qty": traded.qty,
        "value_milli": traded.value_milli,
        **run.speed(),
        "output": output,
    }


def render_result(
    result: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], load_line: str
) -> str:
    """Return the table that is printed at the end of a run.

    Args:
        result: from `describe_result`.
        rows: first rows of the volumes.
        load_line: Python that loads the fills; "" if there is nothing to load.
    """
    lines = report.head(result)
    lines.append(report.line("streamed", f"{result['rows_streamed']:,} orders and cancels"))
    out = result["rows_out"]
    lines.append(report.line("fills", f"{out['fills']:,}"))
    lines += _comparison_lines(result)
    auction = (
        f"{result['auction_computed']:,} fills computed, {result['auction_applied']:,} applied"
    )
    lines.append(report.line("auctions", auction))
    volume = f"{result['qty']:,} shares, value {result['value_milli'] / 1000:,.2f}"
    lines.append(
        report.line("volume", f"{volume}; {out['volumes']:,} updates, one a second and symbol")
    )
    lines += report.speed(result)
    lines.append(report.line("output", f"{result['output']} (fills, volumes)"))
    lines += ["", *report.table(rows)]
    if load_line:
        lines += ["", f"load the fills with: {load_line}"]
    return "\n".join(lines)


def _comparison_lines(result: Mapping[str, Any]) -> list[str]:
    if result["compared"] is None:
        return []
    text = (
        f"{result['compared']:,} continuous fills with the exchange's, {result['equal']:,} equal"
        " (resting order, price, quantity, turn)"
    )
    if result["surplus"]:
        text += f", {result['surplus']:,} that it does not have"
    if result["first_different_seq"] is not None:
        text += f"; the first that differs has seq {result['first_different_seq']}"
    return [report.line("compared", text)]
