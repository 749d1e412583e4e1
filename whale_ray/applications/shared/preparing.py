"""What preparing input with Spark takes: files in a folder, their columns, rows left out.

pyspark is not imported: everything goes through the session and the DataFrames that are passed in.
A rejected row is counted under one reason; None is the reason of the rows that pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ...configs.errors import BadRowError, InputError
from .parquet_input import nanosecond_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "OnBadRows",
    "check_types",
    "in_brackets",
    "input_folder",
    "open_parquet",
    "pairs_of_inputs",
    "refuse_rejected",
    "rejected_rows",
]

#: "drop" counts rows that cannot be used, "fail" refuses them.
OnBadRows = Literal["drop", "fail"]


def input_folder(directory: str | Path, wanted: str) -> Path:
    """Return a folder that exists; `wanted` says in words what belongs there; raises InputError."""
    folder = Path(directory)
    if not folder.is_dir():
        msg = f"no folder {str(folder)!r}: give one with {wanted}"
        raise InputError(msg)
    return folder


def pairs_of_inputs(
    folder: Path, names: Sequence[tuple[str, str]], wanted: str
) -> list[tuple[Path, Path]]:
    """Return the pairs of files that are there, one or more.

    Args:
        folder: where they lie.
        names: of the pairs that there may be.
        wanted: what belongs there, in words.

    Raises:
        InputError: there is no pair, or only one half of it.
    """
    pairs = [(folder / one, folder / other) for one, other in names]
    whole = [pair for pair in pairs if pair[0].exists() and pair[1].exists()]
    if whole:
        return whole
    for pair in pairs:
        for present, absent in (pair, pair[::-1]):
            if present.exists():
                msg = f"{str(folder)!r} has {present.name} but no {absent.name}: put it there"
                raise InputError(msg)
    msg = f"{str(folder)!r} has no input: put {wanted} there"
    raise InputError(msg)


def open_parquet(
    session: SparkSession, side: str, path: str, expected: Mapping[str, tuple[str, ...]]
) -> DataFrame:
    """Open an input and check its columns, see `check_types`.

    Timestamps in nanoseconds, which Spark does not read as such, are taken as microseconds.

    Raises:
        InputError: there is no such file, one that is no whole Parquet file, or a column is missing
            or of another type.
    """
    nanoseconds = nanosecond_columns(side, path)
    if nanoseconds:  # as plain numbers, which are turned into times here
        session.conf.set("spark.sql.legacy.parquet.nanosAsLong", "true")
    rows = session.read.parquet(path)
    terms = [
        f"{nanoseconds[name]} AS `{name}`" if name in nanoseconds else f"`{name}`"
        for name in rows.columns
    ]
    rows = rows.selectExpr(*terms)
    check_types(side, path, dict(rows.dtypes), expected)
    return rows


def check_types(
    side: str, path: str, found: Mapping[str, str], expected: Mapping[str, tuple[str, ...]]
) -> None:
    """Refuse an input that lacks a column, or has one of a type that cannot be used.

    Args:
        side: what the rows are, for the message.
        path: of the input, too.
        found: column → type, by Spark's names.
        expected: column → the types that can be used.

    Raises:
        InputError: names the column and the remedy.
    """
    for name, accepted in expected.items():
        if name not in found:
            near = get_close_matches(name, found, n=1)
            hint = f"is {near[0]!r} it?" if near else f"it has {', '.join(found)}."
            msg = f"{side}: {path!r} has no column {name!r}; {hint} Rename the column"
            raise InputError(msg)
        if found[name] not in accepted:
            msg = (
                f"{side}: column {name!r} of {path!r} is {found[name]}"
                f" where {' or '.join(accepted)} is needed: cast it"
            )
            raise InputError(msg)


def rejected_rows(counts: Mapping[str, Mapping[str | None, int]]) -> dict[str, int]:
    """Return "input: reason" → rows left out, of input → reason → rows."""
    return {
        f"{side}: {reason}": rows
        for side, of_side in counts.items()
        for reason, rows in sorted(of_side.items(), key=lambda item: str(item[0]))
        if reason is not None
    }


def refuse_rejected(rejected: Mapping[str, int]) -> None:
    """Refuse rows that cannot be used, if there are any; raises BadRowError."""
    if rejected:
        msg = (
            f"{sum(rejected.values()):,} rows cannot be used{in_brackets(rejected)}."
            " Mend the input, or leave such rows out and count them with on_bad_rows='drop'"
        )
        raise BadRowError(msg)


def in_brackets(counts: Mapping[str, int]) -> str:
    """Return reasons and rows in words, to stand behind a word; "" without any."""
    words = "; ".join(f"{reason}: {rows:,}" for reason, rows in counts.items())
    return f" ({words})" if words else ""
