"""Reads text files in blocks of whole records.

A block ends where a record ends, so parsing block by block gives the same records for any block
size.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ...configs.errors import InputError
from .files import compression_of
from .text_encoding import UTF_8, utf8_pieces

BLOCK_BYTES = 1 << 20
RECORD_BYTES_MAX = 16 << 20
_FIRST_RECORD_BYTES = 4096


@dataclass(frozen=True)
class Quoting:
    """The rules of quoting of a CSV file.

    Attributes:
        delimiter: the ASCII character between fields.
        over_lines: whether a quoted field may hold line ends.
    """

    delimiter: str
    over_lines: bool = True


@dataclass(frozen=True)
class TextBlock:
    """Whole records of a file.

    Attributes:
        data: the bytes in UTF-8, ending with a line end except at the end of the file.
        first_line: the number of the first line, counted from 1.
        quoting: the rules of quoting; None if every line is a record.
        has_bad_quotes: whether the quotes of any record break the rules.
        offset: how many bytes of the file's text, in UTF-8 without a byte-order mark, are before.
    """

    data: bytes
    first_line: int
    quoting: Quoting | None = None
    has_bad_quotes: bool = False
    offset: int = 0

    def split(self) -> tuple[list[bytes], list[bool]]:
        """Return the records, each with its line end, and which of them have bad quotes."""
        if self.quoting is None:
            lines = self.data.splitlines(keepends=True)
            return lines, [False] * len(lines)
        from .quoted_records import find_records

        records = find_records(self.data, self.quoting, len(self.data), complete=True)
        bounds = pairwise([0, *records.ends.tolist()])
        return [self.data[start:end] for start, end in bounds], records.bad.tolist()

    def split_first(self) -> tuple[bytes, bool, TextBlock]:
        """Return the first record, whether its quotes are bad, and the block without it."""
        if self.has_bad_quotes:
            records, bad = self.split()
            first, is_bad, bad_follow = records[0], bad[0], any(bad[1:])
        else:
            first, is_bad, bad_follow = self._first(), False, False
        line = self.first_line + count_lines(first)
        offset = self.offset + len(first)
        rest = TextBlock(self.data[len(first) :], line, self.quoting, bad_follow, offset)
        return first, is_bad, rest

    def _first(self) -> bytes:
        """Return the first record of a block without bad ones, reading only its beginning."""
        most = _FIRST_RECORD_BYTES
        while most < len(self.data):
            start = TextBlock(self.data[: _last_line_end(self.data[:most])], 1, self.quoting)
            records, bad = start.split()
            if records and not bad[0]:
                return records[0]
            most *= 4  # the record is longer than that
        return self.split()[0][0]


def count_lines(data: bytes) -> int:
    """Return the number of line ends: LF, CR LF or CR."""
    text = np.frombuffer(data, np.uint8)
    feeds = text == ord("\n")
    count = np.count_nonzero(feeds)
    if b"\r" in data:
        returns = text == ord("\r")
        count += np.count_nonzero(returns) - np.count_nonzero(returns[:-1] & feeds[1:])
    return int(count)


def read_blocks(
    path: str,
    quoting: Quoting | None = None,
    encoding: str = UTF_8,
    block_bytes: int = BLOCK_BYTES,
    most_bytes: int = RECORD_BYTES_MAX,
    offset: int = 0,
    line: int = 1,
) -> Iterator[TextBlock]:
    """Read a file (compressed if its name ends in .gz, .bz2 or .zst) in blocks of whole records.

    Args:
        path: the file.
        quoting: the rules of quoting; None if every line is a record.
        encoding: the file's encoding, as Python names it.
        block_bytes: how many bytes to read at once.
        most_bytes: the longest accepted record, which bounds memory; a quote that is not closed
            within this distance counts as unclosed.
        offset: where to begin: the offset of a block.
        line: the number of the first line there.

    Raises:
        InputError: the file cannot be read, is not text, or holds a longer line.
    """
    import pyarrow as pa

    rest = b""
    compression = compression_of(path)
    try:
        if compression and not os.path.getsize(path):
            msg = f"0 bytes, which is no {compression} file"
            raise EOFError(msg)
        with pa.input_stream(path, compression=compression) as stream:
            seeks = compression is None
            for piece, last in utf8_pieces(stream, path, encoding, block_bytes, offset, seeks):
                rest += piece
                end, hidden, bad = _whole_records(rest, quoting, last, most_bytes)
                if end:
                    block = TextBlock(rest[:end], line, hidden, bad, offset)
                    yield block
                    line += count_lines(block.data)
                    offset += end
                    rest = rest[end:]
                elif len(rest) > most_bytes:
                    raise InputError(_too_long(path, line, most_bytes))
    except (pa.ArrowException, OSError, EOFError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        msg = f"{path}: cannot be read beyond line {line} ({reason}); copy or write it again"
        raise InputError(msg) from error


def _too_long(path: str, line: int, most_bytes: int) -> str:
    return (
        f"{path}, line {line}: no end within {most_bytes >> 20} MiB; "
        "is this not a text file of one record per line?"
    )


def _whole_records(
    data: bytes, quoting: Quoting | None, last: bool, most_bytes: int
) -> tuple[int, Quoting | None, bool]:
    """Return the end of the last whole record, the quoting if it matters, and if a record is bad.

    Without a quote, every line is a record. With quotes, a fast pass over the quotes usually finds
    that all follow the rules; if not, the records are examined one by one. If the last record is
    longer than `most_bytes`, they are examined again as if its open quote were never closed.
    """
    stop = len(data) if last else _last_line_end(data)
    if quoting is None or data.find(b'"', 0, stop) < 0:
        return stop, None, False
    from .quoted_records import find_records, last_record_end

    proven = last_record_end(data, quoting, stop)
    if proven is not None and (proven == stop or (not last and len(data) - proven <= most_bytes)):
        return proven, quoting, False
    end, bad = 0, False
    for complete in (last, True):
        records = find_records(data, quoting, stop, complete)
        end, bad = int(records.ends[-1]) if len(records.ends) else 0, bool(records.bad.any())
        if len(data) - end <= most_bytes:
            break
    return end, quoting, bad


def _last_line_end(data: bytes) -> int:
    """Return the index after the last line end, 0 if there is none.

    A CR in the last byte does not count: it may be the first half of CR LF.
    """
    return max(data.rfind(b"\n"), data.rfind(b"\r", 0, max(len(data) - 1, 0))) + 1
