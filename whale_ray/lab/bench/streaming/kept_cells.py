"""What was measured, kept in a file: a run that was interrupted goes on with the rest.

A file has one JSON object a line: first the conditions, then cells, and parts of the suite that
have none, in the order of their ends.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ....configs.errors import ResourceError, UsageError
from ..report import Aim, BenchRow
from .answers import Answer
from .timing import Measured

__all__ = ["Cell", "KeptCells", "KeptPart", "digest_of_sources"]


@dataclass(frozen=True, slots=True)
class Cell:
    """What was measured: a system over a workload, whose keys have a skew.

    Its input has `length` times the events of the run.
    """

    system: str
    workload: str
    skew: float
    length: int = 1


@dataclass(frozen=True, slots=True)
class KeptPart:
    """What a part of the suite that has no cells reports, as a whole."""

    rows: Sequence[BenchRow]
    notes: Sequence[str]


class KeptCells:
    """The cells and parts of a run, in memory, and in a file if there is one.

    Args:
        path: of the file, which is made if need be; None keeps nothing.
        conditions: what figures depend on, as JSON has it.

    Raises:
        UsageError: the file has other conditions, or is none of this kind.
        ResourceError: it cannot be read or written.
    """

    def __init__(self, path: Path | None, conditions: Mapping[str, Any]) -> None:
        self._path = path
        self._cells: dict[Cell, Measured] = {}
        self._parts: dict[str, KeptPart] = {}
        if path is None:
            return
        try:
            text = path.read_text(encoding="utf-8") if path.exists() else ""
            # A line that an interruption cut off has no end.
            lines = text[: text.rfind("\n") + 1].splitlines()
            if lines:
                self._take(path, lines, dict(conditions))
            else:
                lines = [json.dumps({"conditions": dict(conditions)})]
            path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        except OSError as error:
            msg = f"--resume {path}: {error.strerror}: name a file that can be written"
            raise ResourceError(msg) from error

    def _take(self, path: Path, lines: list[str], conditions: dict[str, Any]) -> None:
        try:
            there, *others = map(json.loads, lines)
            found = there["conditions"]
            for one in others:
                if "part" in one:
                    self._parts[one["part"]] = KeptPart([*map(_row, one["rows"])], one["notes"])
                    continue
                answer = Answer(**one["measured"].pop("answer"))
                self._cells[Cell(**one["cell"])] = Measured(**one["measured"], answer=answer)
        except (ValueError, KeyError, TypeError) as error:
            msg = f"--resume {path}: not written by bench streaming: name another file"
            raise UsageError(msg) from error
        if found != conditions:
            both = sorted({*found, *conditions})
            names = ", ".join(name for name in both if found.get(name) != conditions.get(name))
            msg = f"--resume {path}: measured with other {names}: name another file"
            raise UsageError(msg)

    def get(self, cell: Cell) -> Measured | None:
        """Return what was measured, or None."""
        return self._cells.get(cell)

    def add(self, cell: Cell, measured: Measured) -> None:
        """Keep a cell."""
        self._cells[cell] = measured
        self._append({"cell": asdict(cell), "measured": asdict(measured)})

    def part(self, name: str) -> KeptPart | None:
        """Return what a part has reported, or None."""
        return self._parts.get(name)

    def add_part(self, name: str, part: KeptPart) -> None:
        """Keep a part."""
        self._parts[name] = part
        self._append({"part": name, **asdict(part)})

    def _append(self, entry: Mapping[str, Any]) -> None:
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")


def digest_of_sources(folder: Path) -> str:
    """Return a digest of the programs of a folder, in Python and in Java."""
    digest = hashlib.sha256()
    for path in sorted(one for kind in ("*.py", "*.java") for one in folder.rglob(kind)):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(folder)} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:16]


def _row(values: dict[str, Any]) -> BenchRow:
    aim = values.pop("aim")
    return BenchRow(**values, aim=None if aim is None else Aim(**aim))
