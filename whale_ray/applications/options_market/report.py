"""The report of a run of the application: one JSON object, and a short table for people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ..shared import report
from .contracts import ContractBook
from .settings import MISSED_SHARE, OptionsMarketSettings
from .topology import APPLICATION

if TYPE_CHECKING:
    from ...lab.bench.options_market.measuring import MarketRun, StageLatency

__all__ = ["describe_result", "render_result"]

_STAGE_WIDTH = 20


def describe_result(
    *,
    command: str,
    settings: OptionsMarketSettings,
    more_settings: Mapping[str, object],
    placement: str,
    book: ContractBook,
    rows_rejected: Mapping[str, int],
    measured: MarketRun,
    output: str | None,
    phases_s: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """Return what `--json` prints.

    Args:
        command: the command line.
        settings: settings of the application.
        more_settings: settings of the run; shown beside the application's.
        placement: name of the placement.
        book: the contracts.
        rows_rejected: "input: reason" → rows of the data left out.
        measured: the run.
        output: folder of the decisions; None if they were not written.
        phases_s: phase → seconds, from the start of the command.
    """
    ingest = measured.ingest
    share = measured.transport_share
    return {
        "application": APPLICATION,
        "command": command,
        "settings": {**asdict(settings), **more_settings},
        "state": measured.state,
        "placement": placement,
        "workers": measured.workers,
        "hosts": measured.hosts,
        "contracts": len(book),
        "contracts_from": book.origin,
        "real_rate": round(book.trades_per_s, 1),
        "times_real_rate": round(settings.rate / book.trades_per_s, 2),
        "rows_rejected": dict(rows_rejected),
        "messages": {
            "offered": ingest.offered,
            "taken": ingest.taken,
            "missed": ingest.missed,
            "missed_share": ingest.missed_share,
            "gaps": ingest.gaps,
            "damaged": ingest.damaged,
        },
        "trades": measured.trades,
        "decisions": measured.decisions,
        "latency_samples": measured.samples,
        "latency_us": {
            **{name: _rounded(stage) for name, stage in measured.stages.items()},
            "end_to_end": _rounded(measured.end_to_end),
            "wait_on_line": _rounded(measured.wait_on_line),
            "from_due": _rounded(measured.from_due),
        },
        "transport_share": None if share is None else round(share, 4),
        "seconds": round(measured.seconds, 3),
        "phases_s": report.rounded(phases_s or {}),
        "cpu_s": round(measured.cpu_s, 3),
        "output": output,
    }


def _rounded(latency: StageLatency | None) -> dict[str, float] | None:
    if latency is None:
        return None
    named = {"mean": latency.mean_us, "p50": latency.p50_us, "p99": latency.p99_us}
    return {name: round(value, 1) for name, value in named.items()}


def render_result(result: Mapping[str, Any]) -> str:
    """Return the table that is printed at the end of a run; `result` is from `describe_result`."""
    messages, rate = result["messages"], result["settings"]["rate"]
    ended = "done in" if result["state"] == "finished" else "stopped early, after"
    where = f"{result['workers']} workers, {result['hosts']} hosts"
    lines = [
        f"{result['application']}: {ended} {result['seconds']:,.1f} s",
        report.line("placement", f"{result['placement']}: {where}"),
        report.line("contracts", f"{result['contracts']:,}, {result['contracts_from']}"),
        report.line(
            "rate", f"{rate:,.0f} messages/s, {result['times_real_rate']:,.1f} × the real one"
        ),
    ]
    lines += report.left_out(result)
    missed = f"{messages['missed']:,} missed ({messages['missed_share']:.4%})"
    if messages["missed_share"] >= MISSED_SHARE:
        missed += f", {MISSED_SHARE:.2%} or more: the rate is too high"
    lines += [
        report.line(
            "messages", f"{messages['offered']:,} offered, {messages['taken']:,} taken, {missed}"
        ),
        report.line("decisions", f"{result['decisions']:,}"),
    ]
    if messages["damaged"]:
        lines.append(report.line("damaged", f"{messages['damaged']:,}"))
    if result["output"] is not None:
        lines.append(report.line("output", result["output"]))
    if result["transport_share"] is None:
        return "\n".join([*lines, "", "  (no decision whose latency counts)"])
    lines += ["", f"  {'latency, µs':<{_STAGE_WIDTH}}{'mean':>12}{'p50':>12}{'p99':>12}"]
    for name, of in result["latency_us"].items():
        cells = "".join(f"{of[figure]:>12,.1f}" for figure in ("mean", "p50", "p99"))
        lines.append(f"  {name.replace('_', ' '):<{_STAGE_WIDTH}}{cells}")
    share = f"{result['transport_share']:.0%} of the mean from handler to collector"
    lines += ["", report.line("transport", share)]
    return "\n".join(lines)
