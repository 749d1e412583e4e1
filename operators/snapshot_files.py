"""Chunks and values of snapshots to bytes and back: what the files of a checkpoint hold.

A chunk is a stream of Arrow IPC, so that other tools can read it: the rows, and after their columns
the hidden event times, if they have any. The metadata of its schema, `whale_ray`, says in JSON what
Arrow has no place for: how many rows there are, which a table without columns does not show,
whether the last column is their event times, and at which input they wait. Values are pickled.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .arrow_streams import stream_of
from .snapshots import StateChunk

if TYPE_CHECKING:
    import pyarrow as pa

    from ..transport.wire.batch import Batch

__all__ = ["chunk_from_bytes", "chunk_to_bytes", "values_from_bytes", "values_to_bytes", "warm_up"]

_METADATA = b"whale_ray"
_TIMES = "#times"


def chunk_to_bytes(chunk: StateChunk) -> bytes:
    """Return a chunk as the bytes of a file; its identity is not part of them."""
    import pyarrow as pa

    rows = chunk.rows
    table, times = rows.to_arrow(), rows.times
    fields, arrays = list(table.schema), list(table.columns)
    if times is not None:
        fields.append(pa.field(_TIMES, pa.int64()))
        # Not pa.array(times), which imports pandas to ask whether it is one of its arrays.
        kept = pa.py_buffer(np.ascontiguousarray(times, np.int64))
        arrays.append(pa.Array.from_buffers(pa.int64(), len(times), [None, kept]))
    said = {"rows": rows.num_rows, "times": times is not None, "waits": chunk.waits}
    schema = pa.schema(fields, metadata={_METADATA: json.dumps(said)})
    return stream_of(schema, [pa.RecordBatch.from_arrays(arrays, schema=schema)])


def chunk_from_bytes(data: bytes | memoryview) -> StateChunk:
    """Return the chunk that `chunk_to_bytes` wrote, in memory of its own.

    Raises:
        ValueError: the bytes are not those of a chunk, or are cut short.
    """
    import pyarrow as pa

    try:
        with pa.ipc.open_stream(pa.py_buffer(data)) as stream:
            said = json.loads((stream.schema.metadata or {}).get(_METADATA, b"null"))
            table = stream.read_all()
    except (pa.ArrowException, OSError) as error:
        msg = f"no chunk of state: {error}"
        raise ValueError(msg) from None
    if said is None:
        msg = "a stream of Arrow that is no chunk of state"
        raise ValueError(msg)
    waits = said["waits"]
    return StateChunk(_batch(table, said), waits=None if waits is None else (waits[0], waits[1]))


def warm_up() -> None:
    """Load what the first chunk and the first values need, so that no checkpoint waits for that."""
    from ..transport.wire.batch import Batch

    batch = Batch.from_pydict({"key": np.array([1], np.int64)}).with_times(np.zeros(1, np.int64))
    chunk_to_bytes(StateChunk(batch))
    values_to_bytes({"values": StateChunk(batch)})


def _batch(table: pa.Table, said: Mapping[str, Any]) -> Batch:
    from ..transport.wire.batch import Batch
    from ..transport.wire.types import Schema

    times = None
    if said["times"]:
        last = table.num_columns - 1
        times = np.concatenate([_int64(chunk) for chunk in table.column(last).chunks])
        table = table.remove_column(last)
    if not table.num_columns:
        return Batch(Schema(()), [], said["rows"], times)
    return Batch.from_arrow(table).copy().with_times(times)


def _int64(array: pa.Array) -> npt.NDArray[np.int64]:
    """Return the values, none of which is null. Not `to_numpy`, which imports pandas."""
    values = np.frombuffer(array.buffers()[1], np.int64)
    return values[array.offset : array.offset + len(array)]


def values_to_bytes(values: Mapping[str, Any]) -> bytes:
    """Return the values of a snapshot, pickled.

    Raises:
        Exception: whatever a value raises that cannot be pickled.
    """
    import cloudpickle

    kept: bytes = cloudpickle.dumps(dict(values), protocol=pickle.HIGHEST_PROTOCOL)
    return kept


def values_from_bytes(data: bytes) -> dict[str, Any]:
    """Return what `values_to_bytes` was given. Unpickle only what one has written oneself."""
    found: dict[str, Any] = pickle.loads(data)  # noqa: S301  # of the job's own store
    return found
