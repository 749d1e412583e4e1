"""What a run of the application reports: one JSON object, or a short table for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .prepare import Comparison
from .schemas import FILLS
from .settings import StockExchangeSettings
from .topology import APPLICATION

__all__ = ["Traded", "describe_result", "render_result", "traded_in"]

_LABEL_WIDTH = 14


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
    *,
    command: str,
    settings: StockExchangeSettings,
    more_settings: Mapping[str, object] | None = None,
    rows_in: Mapping[str, int],
    streamed: int,
    rows_rejected: Mapping[str, int],
    traded: Traded,
    comparison: Comparison | None,
    volume_rows: int,
    seconds: float,
    restarts: int,
    latency_ms: tuple[float | None, float | None],
    output: str,
) -> dict[str, Any]:
    """Return what `--json` prints.

    Args:
        command: the command line.
        settings: of the application.
        more_settings: of the run, such as workers; shown beside the application's.
        rows_in: input → rows read.
        streamed: rows that went through the topology: orders, cancels, phases of trading.
        rows_rejected: "input: reason" → rows left out.
        traded: what the fills add up to.
        comparison: with the exchange's own continuous fills; None if there was none.
        volume_rows: rows of volume, one per symbol and second with a fill.
        seconds: of streaming, from start to published output.
        restarts: how often the job began anew.
        latency_ms: p50 and p99 from a source's read to the fills' sink; None where unknown.
        output: the folder of fills and volumes.
    """
    p50_ms, p99_ms = (None if value is None else round(value, 3) for value in latency_ms)
    return {
        "application": APPLICATION,
        "command": command,
        "settings": {**asdict(settings), **(more_settings or {})},
        "rows_in": dict(rows_in),
        "rows_streamed": streamed,
        "rows_rejected": dict(rows_rejected),
        "rows_out": {"fills": traded.fills, "volumes": volume_rows},
        "compared": None if comparison is None else comparison.compared,
        "equal": None if comparison is None else comparison.equal,
        "surplus": None if comparison is None else comparison.surplus,
        "first_different_seq": None if comparison is None else comparison.first_different_seq,
        "auction_computed": traded.auction_computed,
        "auction_applied": traded.auction_applied,
        "qty": traded.qty,
        "value_milli": traded.value_milli,
        "seconds": round(seconds, 3),
        "tuples_per_s": round(streamed / seconds) if seconds > 0 else 0,
        "restarts": restarts,
        "latency_ms": {"p50": p50_ms, "p99": p99_ms},
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
    read = ", ".join(f"{count:,} {side}" for side, count in result["rows_in"].items())
    lines = [f"{result['application']}: done in {result['seconds']:,.1f} s", _line("read", read)]
    for reason, count in result["rows_rejected"].items():
        lines.append(_line("left out", f"{count:,} {reason}"))
    lines.append(_line("streamed", f"{result['rows_streamed']:,} orders and cancels"))
    out = result["rows_out"]
    lines.append(_line("fills", f"{out['fills']:,}"))
    lines += _judgement(result)
    auction = (
        f"{result['auction_computed']:,} fills computed, {result['auction_applied']:,} applied"
    )
    lines.append(_line("auctions", auction))
    volume = f"{result['qty']:,} shares, value {result['value_milli'] / 1000:,.2f}"
    lines.append(_line("volume", f"{volume}; {out['volumes']:,} updates, one a second and symbol"))
    lines.append(_line("throughput", f"{result['tuples_per_s']:,} tuples/s"))
    lines.append(_line("restarts", f"{result['restarts']:,}"))
    latency = result["latency_ms"]
    if latency["p50"] is not None and latency["p99"] is not None:
        shown = f"p50 {latency['p50']:,.1f} ms, p99 {latency['p99']:,.1f} ms, source to sink"
        lines.append(_line("latency", shown))
    lines.append(_line("output", f"{result['output']} (fills, volumes)"))
    lines += ["", *_table(rows)]
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
    return [_line("compared", text)]


def _line(label: str, text: str) -> str:
    return f"  {label:<{_LABEL_WIDTH}}{text}"


def _table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    if not rows:
        return ["  (no row)"]
    names = list(rows[0])
    cells = [names, *([str(row[name]) for name in names] for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(names))]
    return [
        "  "
        + "  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in cells
    ]
