"""The streams in files to map into memory: Arrow for whale-ray, files of columns for Flink.

Texts lie there as they are, or as codes of a dictionary.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from .inputs import stream_path

if TYPE_CHECKING:
    from .workload import Workload

__all__ = [
    "Files",
    "arrow_path",
    "column_path",
    "columns_read",
    "map_for_flink",
    "map_streams",
    "mapped_bytes",
]

Files: TypeAlias = Literal["parquet", "mapped", "coded"]
"""The files of a stream: Parquet, or mapped into memory with texts as they are, or as codes."""

_BLOCK_ROWS = 1 << 18


def arrow_path(folder: Path, stream: str, files: Files) -> Path:
    """Return the Arrow file of a stream that `map_streams` has written."""
    return folder / f"{stream}.{files}.arrow"


def column_path(folder: Path, stream: str, column: str, part: str) -> Path:
    """Return a file that `map_for_flink` has written.

    `numbers`; `texts` and their `ends`; or `codes`, `dictionary.texts` and `dictionary.ends`.
    """
    return folder / f"{stream}.{column}.{part}"


def map_streams(folder: Path, workloads: Iterable[Workload], files: Files) -> None:
    """Write the columns that workloads read beside their Parquet files, as Arrow files."""
    for stream, columns in columns_read(workloads).items():
        parquet = pq.ParquetFile(stream_path(folder, stream))
        texts = _texts(folder, stream, columns) if files == "coded" else ()
        dictionaries = {name: _dictionary(folder, stream, name) for name in texts}
        coded = pa.dictionary(pa.int32(), pa.string())
        schema = pa.schema(
            [
                pa.field(name, coded) if name in texts else parquet.schema_arrow.field(name)
                for name in columns
            ]
        )
        with pa.ipc.new_file(arrow_path(folder, stream, files), schema) as file:
            for batch in parquet.iter_batches(_BLOCK_ROWS, columns=columns):
                arrays = {name: batch[name] for name in columns}
                for name, dictionary in dictionaries.items():
                    codes = pc.index_in(batch[name], dictionary)
                    arrays[name] = pa.DictionaryArray.from_arrays(codes, dictionary)
                file.write_batch(pa.record_batch(arrays, schema=schema))


def mapped_bytes(folder: Path, stream: str, columns: Sequence[str], files: Files) -> int:
    """Return how many bytes some columns of an Arrow file have."""
    with pa.memory_map(str(arrow_path(folder, stream, files))) as file:
        read = pa.ipc.open_file(file)
        batches = map(read.get_batch, range(read.num_record_batches))
        return sum(batch[name].nbytes for batch in batches for name in columns)


def map_for_flink(folder: Path, workloads: Iterable[Workload], files: Files) -> None:
    """Write the same for FlinkColumn: little-endian 64-bit words, and the bytes of texts."""
    for stream, columns in columns_read(workloads).items():
        texts = _texts(folder, stream, columns)
        for name in columns:
            chunks = _chunks(stream_path(folder, stream), name)
            if name not in texts:
                _write_words(column_path(folder, stream, name, "numbers"), chunks)
            elif files == "coded":
                found = _dictionary(folder, stream, name)
                codes = (pc.index_in(chunk, found) for chunk in chunks)
                _write_words(column_path(folder, stream, name, "codes"), codes)
                _write_texts(folder, stream, f"{name}.dictionary", [found])
            else:
                _write_texts(folder, stream, name, chunks)


def columns_read(workloads: Iterable[Workload]) -> dict[str, list[str]]:
    """Return stream → the columns that any of the workloads reads."""
    read: dict[str, dict[str, None]] = {}
    for workload in workloads:
        for stream, columns in workload.reads.items():
            read.setdefault(stream, {}).update(dict.fromkeys(columns))
    return {stream: list(columns) for stream, columns in read.items()}


def _texts(folder: Path, stream: str, columns: Iterable[str]) -> tuple[str, ...]:
    """Return those of the columns that have texts."""
    schema = pq.read_schema(stream_path(folder, stream))
    return tuple(name for name in columns if pa.types.is_string(schema.field(name).type))


def _dictionary(folder: Path, stream: str, column: str) -> pa.Array:
    """Return the texts of a column, each once; they should be few."""
    found = pa.array([], pa.string())
    for chunk in _chunks(stream_path(folder, stream), column):
        found = pc.unique(pa.concat_arrays([found, pc.unique(chunk)]))
    return found


def _chunks(path: Path, column: str) -> Iterator[Any]:
    """Yield a column in parts; none of them has nulls."""
    for batch in pq.ParquetFile(path).iter_batches(_BLOCK_ROWS, columns=[column]):
        assert not batch[column].null_count
        yield batch[column]


def _write_words(path: Path, chunks: Iterable[pa.Array]) -> None:
    with path.open("wb") as file:
        for chunk in chunks:
            file.write(chunk.cast(pa.int64()).to_numpy().astype("<i8"))


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
