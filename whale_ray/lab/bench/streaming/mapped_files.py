"""The streams in files to map into memory: Arrow for whale-ray, files of columns for Flink."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from .inputs import stream_path

if TYPE_CHECKING:
    from .workload import Workload

__all__ = [
    "column_path",
    "columns_read",
    "map_for_flink",
    "map_streams",
    "mapped_bytes",
    "mapped_path",
]

_BLOCK_ROWS = 1 << 18


def mapped_path(folder: Path, stream: str) -> Path:
    """Return the Arrow file of a stream that `map_streams` has written."""
    return folder / f"{stream}.arrow"


def column_path(folder: Path, stream: str, column: str, part: str) -> Path:
    """Return a file that `map_for_flink` has written: `numbers`, or `texts` and their `ends`."""
    return folder / f"{stream}.{column}.{part}"


def map_streams(folder: Path, workloads: Iterable[Workload]) -> None:
    """Write the columns that workloads read beside their Parquet files, as Arrow files."""
    for stream, columns in columns_read(workloads).items():
        parquet = pq.ParquetFile(stream_path(folder, stream))
        schema = pa.schema([parquet.schema_arrow.field(name) for name in columns])
        with pa.ipc.new_file(mapped_path(folder, stream), schema) as file:
            for batch in parquet.iter_batches(_BLOCK_ROWS, columns=columns):
                file.write_batch(batch.select(columns))


def mapped_bytes(folder: Path, stream: str, columns: Sequence[str]) -> int:
    """Return how many bytes some columns of an Arrow file have."""
    with pa.memory_map(str(mapped_path(folder, stream))) as file:
        read = pa.ipc.open_file(file)
        batches = map(read.get_batch, range(read.num_record_batches))
        return sum(batch[name].nbytes for batch in batches for name in columns)


def map_for_flink(folder: Path, workloads: Iterable[Workload]) -> None:
    """Write the same for FlinkColumn: little-endian 64-bit words, and the bytes of texts."""
    for stream, columns in columns_read(workloads).items():
        for name in columns:
            chunks = _chunks(stream_path(folder, stream), name)
            if pa.types.is_string(pq.read_schema(stream_path(folder, stream)).field(name).type):
                _write_texts(folder, stream, name, chunks)
            else:
                with column_path(folder, stream, name, "numbers").open("wb") as file:
                    for chunk in chunks:
                        file.write(chunk.cast(pa.int64()).to_numpy().astype("<i8"))


def columns_read(workloads: Iterable[Workload]) -> dict[str, list[str]]:
    """Return stream → the columns that any of the workloads reads."""
    read: dict[str, dict[str, None]] = {}
    for workload in workloads:
        for stream, columns in workload.reads.items():
            read.setdefault(stream, {}).update(dict.fromkeys(columns))
    return {stream: list(columns) for stream, columns in read.items()}


def _chunks(path: Path, column: str) -> Iterator[Any]:
    """Yield a column in parts; none of them has nulls."""
    for batch in pq.ParquetFile(path).iter_batches(_BLOCK_ROWS, columns=[column]):
        assert not batch[column].null_count
        yield batch[column]


def _write_texts(folder: Path, stream: str, column: str, chunks: Iterable[Any]) -> None:
    end = 0
    with (
        column_path(folder, stream, column, "texts").open("wb") as texts,
        column_path(folder, stream, column, "ends").open("wb") as ends,
    ):
        for chunk in chunks:
            offsets = np.frombuffer(chunk.buffers()[1], np.int32)[chunk.offset :][: len(chunk) + 1]
            texts.write(memoryview(chunk.buffers()[2])[offsets[0] : offsets[-1]])
            ends.write((offsets[1:].astype("<i8") + (end - int(offsets[0]))).tobytes())
            end += int(offsets[-1] - offsets[0])
