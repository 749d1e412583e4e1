"""What a run of the application reports: one JSON object, or a short table for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..shared import report
from ..shared.report import Run
from .prepare import Comparison
from .schemas import FILLS
from .settings import StockExchangeSettings
from .topology import APPLICATION

__all__ = ["Traded", "describe_result", "render_result", "traded_in"]


@dataclass(frozen=True)
class Traded:
    """What the output holds."""

    fills: int
    """All."""
    auction_computed: int
    """Of auctions that were computed here."""
    auction_applied: int
    """Of auctions that were applied as the exchange reported them."""
    qty: int
    """Shares that changed hands."""
    value_milli: int
    """Their value."""


def traded_in(path: str | None) -> Traded:
    """Read a folder of fills, piece by piece; without one nothing was traded."""
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
    comparison: Comparison | None,
    volume_rows: int,
    output: str,
) -> dict[str, Any]:
    """Return what `--json` prints.

    Args:
        run: what there is to say of any run; the latency is that of the fills' sink, and rows that
            are streamed are orders, cancels, phases of trading.
        settings: of the application.
        traded: what the fills add up to.
        comparison: with the exchange's own continuous fills; None if there was none.
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
    """Return the table that ends a run.

    Args:
        result: from `describe_result`.
        rows: first rows of the volumes.
        load_line: Python that loads the fills; "" if there is nothing to load.
    """
    lines = report.head(result)
    lines.append(report.line("streamed", f"{result['rows_streamed']:,} orders and cancels"))
    out = result["rows_out"]
    lines.append(report.line("fills", f"{out['fills']:,}"))
    lines += _judgement(result)
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


def _judgement(result: Mapping[str, Any]) -> list[str]:
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
