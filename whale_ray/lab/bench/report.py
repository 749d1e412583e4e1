"""The report of a suite: the machine, the command, and rows of measured values with ratios.

`BenchReport.as_json` writes one object with these fields:

- ``suite``, ``command``: which suite, and the command that runs it again;
- ``machine``: see `Machine`;
- ``notes``: sentences on how the figures are to be read;
- ``rows``: a list of objects with the fields of `BenchRow`, an aim being ``{"quantity", "bound",
  "limit", "met"}`` or null.
"""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

from ...configs.json_text import json_text

_GIB = 1 << 30
_COLUMNS = ("what", "parameters", "value", "unit", "ratio", "against", "aim", "cores", "also")


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine of the measurements."""

    processor: str
    cores: int
    """Cores that this process may use."""
    memory_gib: float
    system: str
    python: str
    packages: Mapping[str, str]
    """Versions of the packages that matter for speed."""
    load: float
    """Mean number of runnable processes in the last minute; about 0 on a quiet machine."""


@dataclass(frozen=True, slots=True)
class Aim:
    """The value that a row should reach on a quiet machine."""

    quantity: Literal["value", "ratio"]
    bound: Literal["at least", "at most"]
    limit: float

    def met(self, row: BenchRow) -> bool:
        """Return whether the row reaches it."""
        measured = row.value if self.quantity == "value" else row.ratio
        if measured is None:
            return False
        return measured >= self.limit if self.bound == "at least" else measured <= self.limit

    def __str__(self) -> str:
        sign = "≥" if self.bound == "at least" else "≤"
        return f"{sign} {self.limit:g}{'x' if self.quantity == 'ratio' else ''}"


@dataclass(frozen=True, slots=True)
class BenchRow:
    """One measured value and its comparison."""

    name: str
    """What was measured."""
    parameters: Mapping[str, object]
    """The conditions; names have their units."""
    value: float
    unit: str
    ratio: float | None = None
    """How many times better than `against` (or larger, if neither is better)."""
    against: str = ""
    """The other side of the ratio, measured in the same run."""
    aim: Aim | None = None
    cores: float | None = None
    """CPU seconds of all processes of the measurement per second of wall time."""
    also: Mapping[str, float] = field(default_factory=dict)
    """Further results, by a name with its unit: "x PEER" is one more ratio, how
    many times the rate of PEER; "sender CPU s/GB" is CPU time of the sending process per GB of
    messages, each counted once however many read it, and "readers CPU s/GB" that of all others;
    "s/M messages" is per million of them."""

    def as_dict(self) -> dict[str, Any]:
        """Return the row as the JSON output has it."""
        values = asdict(self)
        values["parameters"] = dict(self.parameters)
        values["also"] = dict(self.also)
        if self.aim is not None:
            values["aim"] = {**asdict(self.aim), "met": self.aim.met(self)}
        return values


@dataclass(frozen=True, slots=True)
class BenchReport:
    """The result of a suite."""

    suite: str
    command: str
    machine: Machine
    rows: tuple[BenchRow, ...]
    notes: tuple[str, ...] = field(default=())

    def as_json(self) -> str:
        """Return the report as one JSON object on one line."""
        content = {
            "suite": self.suite,
            "command": self.command,
            "machine": asdict(self.machine),
            "notes": list(self.notes),
            "rows": [row.as_dict() for row in self.rows],
        }
        return json_text(content)

    def render(self) -> str:
        """Return the report as text for people."""
        machine = self.machine
        packages = ", ".join(f"{name} {number}" for name, number in machine.packages.items())
        where = (
            f"{machine.processor}, {machine.cores} cores, {machine.memory_gib:.0f} GiB; "
            f"{machine.system}; Python {machine.python}, {packages}; load {machine.load:.1f}"
        )
        lines = [
            self.command,
            where,
            "",
            *_table([_COLUMNS, *(_cells(row) for row in self.rows)]),
            "",
            *self.notes,
        ]
        return "\n".join(lines).rstrip() + "\n"


def describe_machine(packages: Sequence[str] = ("numpy", "numba")) -> Machine:
    """Return this machine, and the versions of `packages` where they are installed."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Machine(
        processor=processor_name(),
        cores=len(os.sched_getaffinity(0)),
        memory_gib=round(memory / _GIB, 1),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=platform.python_version(),
        packages={name: _version(name) for name in packages},
        load=round(os.getloadavg()[0], 2),
    )


def median(values: Sequence[float]) -> float:
    """Return the median of several repetitions, which other load on the machine hardly affects."""
    return float(statistics.median(values))


def processor_name() -> str:
    """Return the processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def file_system_of(folder: str | Path, mounts: Path = Path("/proc/self/mounts")) -> str:
    """Return the kind of a folder's file system: in a `tmpfs`, fsync costs nothing."""
    place = os.path.realpath(folder)
    kind, longest = "unknown", 0
    for line in mounts.read_text(encoding="utf-8", errors="replace").splitlines():
        _, point, mounted, *_ = line.split()
        point = point.replace("\\040", " ")
        if (place == point or place.startswith(point.rstrip("/") + "/")) and len(point) >= longest:
            kind, longest = mounted, len(point)
    return kind


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "missing"


def _cells(row: BenchRow) -> tuple[str, ...]:
    aim = ""
    if row.aim is not None:
        aim = f"{row.aim} {'met' if row.aim.met(row) else 'MISSED'}"
    return (
        row.name,
        ", ".join(f"{name} {value}" for name, value in row.parameters.items()),
        _number(row.value),
        row.unit,
        "" if row.ratio is None else f"{_number(row.ratio)}x",
        row.against,
        aim,
        "" if row.cores is None else f"{row.cores:.2f}",
        "; ".join(f"{name} {_number(value)}" for name, value in row.also.items()),
    )


def _number(value: float) -> str:
    """Return three significant digits, without an exponent."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    right = {_COLUMNS.index(name) for name in ("value", "ratio", "cores")}
    lines = []
    for row in rows:
        cells = (
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        lines.append("  ".join(cells).rstrip())
    lines.insert(1, "  ".join("-" * width for width in widths))
    return lines
