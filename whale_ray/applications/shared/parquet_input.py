"""Checks of Parquet input before Spark reads it, since Spark's own errors name no remedy."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from ...configs.errors import InputError
from ...configs.units import NS_PER_US

__all__ = ["check_files", "nanosecond_columns"]


def check_files(inputs: Mapping[str, str | None]) -> None:
    """Read the footer of every file, so that damaged input is found before minutes of preparation.

    Args:
        inputs: name of the input → a Parquet file, a folder of such files and folders, or None.

    Raises:
        InputError: a file is missing, or is not a complete Parquet file.
    """
    for side, path in inputs.items():
        if path is not None:
            nanosecond_columns(side, path)


def nanosecond_columns(side: str, path: str) -> dict[str, str]:
    """Return column → SQL for its timestamp in microseconds, for columns in nanoseconds.

    Spark reads such a column as an integer, and so does the SQL. Times are rounded down.

    Args:
        side: name of the input, for the message.
        path: a Parquet file, or a folder of such files and folders; only footers are read.

    Raises:
        InputError: a file is missing, or is not a complete Parquet file.
    """
    found: dict[str, str] = {}
    for file in _files(side, path):
        found |= _nanosecond_columns_of(side, file)
    return found


def _files(side: str, path: str) -> list[Path]:
    """Return the files that Spark reads for a path: the file itself, or all below a folder."""
    if not Path(path).exists():
        msg = f"{side}: no file {path!r}: give the path of a Parquet file or folder"
        raise InputError(msg)
    files = [Path(path)] if Path(path).is_file() else sorted(_below(path))
    if not files:
        msg = f"{side}: the folder {path!r} holds no file: put Parquet files there"
        raise InputError(msg)
    return files


def _below(folder: str) -> Iterator[Path]:
    """Find files as Spark does, which skips names that begin with a dot or underscore."""
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if _is_read(name)]
        yield from (Path(place, name) for name in names if _is_read(name))


def _is_read(name: str) -> bool:
    return name[0] not in "._" or (name[0] == "_" and "=" in name)


def _nanosecond_columns_of(side: str, file: Path) -> dict[str, str]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(file) as opened:
            columns = [opened.schema.column(place) for place in range(len(opened.schema))]
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0].split(". ")[0].rstrip(".")
        msg = f"{side}: {str(file)!r} is no whole Parquet file ({reason}): write it again"
        raise InputError(msg) from error
    found = {}
    for column in columns:
        kind = json.loads(column.logical_type.to_json())
        if kind.get("Type") == "Timestamp" and kind.get("timeUnit") == "nanoseconds":
            name = f"`{column.name}`"
            below = f"CAST(PMOD({name}, {NS_PER_US}) > 0 AND {name} < 0 AS BIGINT)"
            moment = f"TIMESTAMP_MICROS({name} DIV {NS_PER_US} - {below})"
            is_utc = kind["isAdjustedToUTC"]
            found[column.name] = moment if is_utc else f"CAST({moment} AS TIMESTAMP_NTZ)"
    return found
