"""The report of a run that applications share: JSON fields, and the lines that people read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...cli.tables import table

__all__ = [
    "Run",
    "described",
    "head",
    "left_out",
    "line",
    "rendered",
    "rounded",
    "speed",
    "table",
]

_LABEL_WIDTH = 14


@dataclass(frozen=True)
class Run:
    """The report of one run, of any application.

    Attributes:
        command: the command line.
        rows_in: input → rows read.
        rows_rejected: "input: reason" → rows left out.
        streamed: rows that went through the topology.
        seconds: of streaming, from start to published output.
        restarts: how often the job restarted.
        latency_ms: p50 and p99 from a source's read to the sink; None where unknown.
        more_settings: settings of the run, such as workers; shown beside the application's.
        phases_s: phase → seconds, from the command's start to its result.
    """

    command: str
    rows_in: Mapping[str, int]
    rows_rejected: Mapping[str, int]
    streamed: int
    seconds: float
    restarts: int
    latency_ms: tuple[float | None, float | None]
    more_settings: Mapping[str, object]
    phases_s: Mapping[str, float] = field(default_factory=dict)

    def speed(self) -> dict[str, Any]:
        """Return seconds, phases_s, tuples_per_s, restarts and latency_ms."""
        p50_ms, p99_ms = (None if value is None else round(value, 3) for value in self.latency_ms)
        return {
            "seconds": round(self.seconds, 3),
            "phases_s": rounded(self.phases_s),
            "tuples_per_s": round(self.streamed / self.seconds) if self.seconds > 0 else 0,
            "restarts": self.restarts,
            "latency_ms": {"p50": p50_ms, "p99": p99_ms},
        }


def described(application: str, run: Run, *, rows_out: int, output: str | None) -> dict[str, Any]:
    """Return what `--json` prints.

    Args:
        application: its name.
        run: the report that applications share.
        rows_out: rows in the output.
        output: folder of the result; None if it was not written.

    Returns:
        application, command, settings, rows_in, rows_out, rows_rejected, seconds, tuples_per_s
        (rows that were streamed, by seconds), restarts, latency_ms and output.
    """
    return {
        "application": application,
        "command": run.command,
        "settings": dict(run.more_settings),
        "rows_in": dict(run.rows_in),
        "rows_out": rows_out,
        "rows_rejected": dict(run.rows_rejected),
        **run.speed(),
        "output": output,
    }


def rendered(result: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], load_line: str) -> str:
    """Return the table that is printed at the end of a run.

    Args:
        result: from `described`.
        rows: the output's first rows.
        load_line: Python that loads the output; "" if there is nothing to load.
    """
    lines = head(result)
    lines.append(line("tuples out", f"{result['rows_out']:,}"))
    lines += speed(result)
    if result["output"] is not None:
        lines.append(line("output", result["output"]))
    lines += ["", *table(rows)]
    if load_line:
        lines += ["", f"load it with: {load_line}"]
    return "\n".join(lines)


def rounded(phases_s: Mapping[str, float]) -> dict[str, float]:
    """Return phase → seconds, rounded for the report."""
    return {name: round(seconds, 3) for name, seconds in phases_s.items()}


def head(result: Mapping[str, Any]) -> list[str]:
    """Return the first lines: the application, the rows read, the rows left out."""
    read = ", ".join(f"{count:,} {side}" for side, count in result["rows_in"].items())
    done = f"{result['application']}: done in {result['seconds']:,.1f} s"
    return [done, line("read", read), *left_out(result)]


def left_out(result: Mapping[str, Any]) -> list[str]:
    """Return one line for each reason why rows were left out."""
    rejected = result["rows_rejected"].items()
    return [line("left out", f"{count:,} {reason}") for reason, count in rejected]


def speed(result: Mapping[str, Any]) -> list[str]:
    """Return the lines for the fields of `Run.speed`."""
    lines = [
        line("throughput", f"{result['tuples_per_s']:,} tuples/s"),
        line("restarts", f"{result['restarts']:,}"),
    ]
    latency = result["latency_ms"]
    if latency["p50"] is not None and latency["p99"] is not None:
        shown = f"p50 {latency['p50']:,.1f} ms, p99 {latency['p99']:,.1f} ms, source to sink"
        lines.append(line("latency", shown))
    return lines


def line(label: str, text: str) -> str:
    """Return a line of the table."""
    return f"  {label:<{_LABEL_WIDTH}}{text}"
