"""Helpers for preparing input with Spark: finding files, checking columns, counting rejected rows.

This module does not import pyspark: it uses the session and the DataFrames that are passed in.
A rejected row is counted under one reason; rows that pass are counted under the reason None.
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
    """Return the folder as a path; raises InputError, with `wanted` for its content, if missing."""
    folder = Path(directory)
    if not folder.is_dir():
        msg = f"no folder {str(folder)!r}: give one with {wanted}"
        raise InputError(msg)
    return folder


def pairs_of_inputs(
    folder: Path, names: Sequence[tuple[str, str]], wanted: str
) -> list[tuple[Path, Path]]:
    """Return the pairs of files in a folder, one or more.

    Args:
        folder: where to look.
        names: names of the possible pairs.
        wanted: description of the files that belong there, for the message.

    Raises:
        InputError: there is no complete pair.
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

    Timestamps in nanoseconds, which Spark cannot read, are converted to microseconds.

    Raises:
        InputError: a file is missing or is not a complete Parquet file, or a column is missing or
            has another type.
    """
    nanoseconds = nanosecond_columns(side, path)
    if nanoseconds:  # Spark reads them as integers, which the terms below convert to timestamps
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
    """Check that an input has the expected columns and types.

    Args:
        side: name of the input, for the message.
        path: path of the input, for the message.
        found: column → type, by Spark's names.
        expected: column → allowed types.

    Raises:
        InputError: a column is missing or has another type; the message names the remedy.
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
    """Turn input → reason → rows into "input: reason" → rows, without the rows that pass."""
    return {
        f"{side}: {reason}": rows
        for side, of_side in counts.items()
        for reason, rows in sorted(of_side.items(), key=lambda item: str(item[0]))
        if reason is not None
    }


def refuse_rejected(rejected: Mapping[str, int]) -> None:
    """Raise BadRowError if any row was rejected."""
    if rejected:
        msg = (
            f"{sum(rejected.values()):,} rows cannot be used{in_brackets(rejected)}."
            " Correct the input, or leave such rows out and count them with on_bad_rows='drop'"
        )
        raise BadRowError(msg)


def in_brackets(counts: Mapping[str, int]) -> str:
    """Return " (reason: rows; …)" for a message; "" if there are no reasons."""
    words = "; ".join(f"{reason}: {rows:,}" for reason, rows in counts.items())
    return f" ({words})" if words else ""
