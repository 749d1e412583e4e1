"""One Arrow IPC file, mapped into memory: its record batches are views of the mapping.

Both formats begin differently: a file with `ARROW1`, and it ends with a footer that says where each
record batch lies; a stream with a message, and its record batches are found one after another. What
is compressed is decoded when it is read, into memory of its own.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ...configs.errors import InputError
from .arrow_reader import first_line

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["MappedIpc"]

_FILE_MAGIC = b"ARROW1"
_STREAM_BEGIN = b"\xff\xff\xff\xff"
_OTHERS = {
    b"PAR1": "it is a Parquet file: read it with sources.parquet",
    b"FEA1": "it is a Feather file of version 1: write it again, as version 2",
}
_FIRST_MESSAGE = 8
"""Where messages begin in a file, after its magic."""

_HEADER_FIELD, _COMPRESSION_FIELD = 2, 3
"""Places in the tables Message and RecordBatch of Message.fbs."""

_WRITE_AGAIN = "write it again or leave it out"


class MappedIpc:
    """An opened file; a context manager. Views of its memory stay valid when it is closed.

    Attributes:
        is_stream: whether it has the stream format.
        schema: the columns as the file has them.

    Raises:
        InputError: the file is cut off, damaged, or none of Arrow IPC.
    """

    def __init__(self, path: str) -> None:
        import pyarrow as pa

        self._path = path
        try:
            self._file = open(path, "rb")  # noqa: SIM115  # closed with the object
        except OSError as error:
            msg = f"{path}: cannot be read ({error.strerror}); bring it back or leave it out"
            raise InputError(msg) from error
        try:
            self._found = self._facts()
            self.is_stream = self._check_begin()
            self._memory = _whole(pa.memory_map(path))
            self.schema = self._opened().schema
            _ = self.schema.names  # decodes them; they may be damaged
        except (pa.ArrowException, OSError, UnicodeError) as error:
            self._file.close()
            raise InputError(self._unreadable(error)) from error
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> MappedIpc:
        return self

    def __exit__(self, *_: object) -> None:
        self._memory.close()
        self._file.close()

    def count(self) -> int:
        """Return the number of record batches; that of a stream is found by passing over it.

        Raises:
            InputError: the stream is cut off.
        """
        if not self.is_stream:
            return int(self._opened().num_record_batches)
        return sum(message.type == "record batch" for message in self._messages())

    def batches(
        self, numbers: Iterable[int], columns: Sequence[str]
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield the record batches of these numbers, ascending, with the columns in file order.

        Raises:
            InputError: one is damaged, or the file has been written to since it was opened.
        """
        import pyarrow as pa

        found: Iterator[tuple[int, pa.RecordBatch]]
        # Arrow copies what it reads of some columns; of all, it makes views.
        reader = self._opened(columns if self.is_compressed() else None)
        found = _of_stream(reader, numbers) if self.is_stream else _of_file(reader, numbers)
        while True:
            self._check_unchanged()  # reading behind the end of a file that was cut would be fatal
            try:
                number, batch = next(found)
                batch.validate()
            except StopIteration:
                return
            except (pa.ArrowException, OSError) as error:
                msg = (
                    f"{self._path}: the Arrow IPC file is damaged ({first_line(error)}); "
                    "write it again"
                )
                raise InputError(msg) from error
            yield number, batch

    def is_compressed(self) -> bool:
        """Return whether the first record batch is compressed, and so no view of the mapping.

        Raises:
            InputError: the file is damaged before the first record batch's rows.
        """
        for message in self._messages():
            if message.type == "record batch":
                return _is_compressed(message.metadata.to_pybytes())
        return False

    def _opened(self, columns: Sequence[str] | None = None) -> Any:
        """Return Arrow's reader from the begin, of these columns alone unless None."""
        import pyarrow as pa

        options = pa.ipc.IpcReadOptions()
        if columns is not None:
            options.included_fields = [self.schema.get_field_index(name) for name in columns]
        self._memory.seek(0)
        opens = pa.ipc.open_stream if self.is_stream else pa.ipc.open_file
        return opens(self._memory, options=options)

    def _messages(self) -> Iterator[Any]:
        """Yield all messages up to the end, schema and dictionaries included."""
        import pyarrow as pa

        self._memory.seek(0 if self.is_stream else _FIRST_MESSAGE)
        messages = pa.ipc.MessageReader.open_stream(self._memory)
        try:
            while True:
                yield messages.read_next_message()
        except StopIteration:
            return
        except (pa.ArrowException, OSError) as error:
            raise InputError(self._unreadable(error)) from error

    def _check_begin(self) -> bool:
        """Return whether the file is a stream, by its first and last bytes."""
        size = os.fstat(self._file.fileno()).st_size
        begin = self._file.read(len(_FILE_MAGIC))
        if begin[:4] == _STREAM_BEGIN:
            return True
        if begin != _FILE_MAGIC:
            hint = _OTHERS.get(begin[:4], _WRITE_AGAIN)
            what = f"begins with {begin!r}" if begin else "is empty"
            msg = f"{self._path}: not an Arrow IPC file, for it {what}; {hint}"
            raise InputError(msg)
        self._file.seek(max(0, size - len(_FILE_MAGIC)))
        if self._file.read() != _FILE_MAGIC or size < 2 * len(_FILE_MAGIC):
            msg = (
                f"{self._path}: the Arrow IPC file has no footer, so it is cut off or still being "
                f"written; {_WRITE_AGAIN}"
            )
            raise InputError(msg)
        return False

    def _facts(self) -> tuple[int, int]:
        found = os.fstat(self._file.fileno())
        return found.st_size, found.st_mtime_ns

    def _check_unchanged(self) -> None:
        if self._facts() != self._found:
            msg = (
                f"{self._path}: the file was written to while it was read; files that are mapped "
                "must stay as they are: write another one, and rename it"
            )
            raise InputError(msg)

    def _unreadable(self, error: Exception) -> str:
        return f"{self._path}: not a complete Arrow IPC file ({first_line(error)}); {_WRITE_AGAIN}"


def _whole(mapped: pa.MemoryMappedFile) -> pa.BufferReader:
    """Return the file as one piece of memory; of the mapping only that is left.

    For each piece that is read of the mapping itself, Arrow asks the kernel to read it ahead, which
    takes 0.1 ms of a processor where all is in memory.
    """
    import pyarrow as pa

    with mapped:
        begin = mapped.read_buffer(len(_FILE_MAGIC))  # keeps all of the mapping
        return pa.BufferReader(pa.foreign_buffer(begin.address, mapped.size(), begin))


def _of_file(reader: Any, numbers: Iterable[int]) -> Iterator[tuple[int, pa.RecordBatch]]:
    return ((number, reader.get_batch(number)) for number in numbers)


def _of_stream(reader: Any, numbers: Iterable[int]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield record batches, and pass over the others, which may bring dictionaries."""
    at = 0
    for number in numbers:
        for _ in range(at, number):
            reader.read_next_batch()
        yield number, reader.read_next_batch()
        at = number + 1


def _is_compressed(metadata: bytes) -> bool:
    """Return whether a record batch's message names a compression (Arrow's Message.fbs).

    The message is a FlatBuffer: a table begins with the distance to its list of places.
    """
    message = int.from_bytes(metadata[:4], "little")
    header = _place(metadata, message, _HEADER_FIELD)
    if not header:
        return False
    batch = header + int.from_bytes(metadata[header : header + 4], "little")
    return _place(metadata, batch, _COMPRESSION_FIELD) != 0


def _place(metadata: bytes, table: int, field: int) -> int:
    """Return where a field of a table is; 0 if it has none."""
    places = table - int.from_bytes(metadata[table : table + 4], "little", signed=True)
    entry = 4 + 2 * field
    if entry >= int.from_bytes(metadata[places : places + 2], "little"):
        return 0
    distance = int.from_bytes(metadata[places + entry : places + entry + 2], "little")
    return table + distance if distance else 0
