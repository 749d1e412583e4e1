"""Text files in blocks of whole lines, and the lines of a block that cannot be read.

Both text formats are parsed by Arrow a block at a time. Arrow rejects a block as a whole, without
saying reliably where; so a block that fails is taken apart until its bad lines are known by number.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...configs.errors import BadRowError, InputError
from .bad_rows import Good, separate
from .base import BadRows

if TYPE_CHECKING:
    import pyarrow as pa

BLOCK_BYTES = 1 << 20
LINE_BYTES_MAX = 16 << 20
_PREVIEW_BYTES = 80


@dataclass(frozen=True)
class Block:
    """Whole records of a file.

    Attributes:
        data: the bytes, ending with a line end except at the end of the file.
        first_line: the number of the first line, counted from 1.
    """

    data: bytes
    first_line: int


def read_blocks(
    path: str,
    quoted: bool = False,
    block_bytes: int = BLOCK_BYTES,
    most_bytes: int = LINE_BYTES_MAX,
) -> Iterator[Block]:
    """Read a file (compressed if its name ends in .gz, .bz2 or .zst) in blocks of whole records.

    Args:
        path: the file.
        quoted: a record may go over several lines inside double quotes.
        block_bytes: how much to read at once.
        most_bytes: the longest record accepted, which bounds memory.

    Raises:
        InputError: the file cannot be read, or holds a longer record.
    """
    import pyarrow as pa

    line = 1
    rest = b""
    try:
        with pa.input_stream(path, compression="detect") as stream:
            while piece := stream.read(block_bytes):
                rest += piece
                cut = _last_record_end(rest, quoted)
                if cut:
                    yield Block(rest[:cut], line)
                    line += rest.count(b"\n", 0, cut)
                    rest = rest[cut:]
                elif len(rest) > most_bytes:
                    raise InputError(_too_long(path, line, most_bytes, quoted))
    except (pa.ArrowException, OSError) as error:
        msg = f"{path}: cannot be read beyond line {line} ({error}); copy or write it again"
        raise InputError(msg) from error
    if rest:
        yield Block(rest, line)


def _too_long(path: str, line: int, most_bytes: int, quoted: bool) -> str:
    cause = "an unclosed quote, or " if quoted else ""
    return (
        f"{path}, line {line}: no end within {most_bytes >> 20} MiB; "
        f"is this {cause}not a text file of one record per line?"
    )


def _last_record_end(data: bytes, quoted: bool) -> int:
    """Return the index after the last line end outside of quotes, 0 if there is none."""
    end = data.rfind(b"\n")
    quotes = data.count(b'"', 0, end) if quoted and end >= 0 else 0
    while quotes % 2:
        later = end
        end = data.rfind(b"\n", 0, later)
        quotes = quotes - data.count(b'"', end, later) if end >= 0 else 0
    return end + 1


def split_records(data: bytes, quoted: bool) -> list[bytes]:
    """Return the records of a block, each with its line end."""
    records: list[bytes] = []
    lines: list[bytes] = []
    quotes = 0
    for line in io.BytesIO(data):
        lines.append(line)
        quotes += line.count(b'"') if quoted else 0
        if quotes % 2 == 0:
            records.append(b"".join(lines))
            lines = []
    return [*records, b"".join(lines)] if lines else records


@dataclass
class BlockParser:
    """Turns blocks into record batches and deals with the records that cannot be read.

    Attributes:
        parse: turns whole records into a table, raising `pyarrow.ArrowException`.
        policy: `fail` refuses the first bad record, `drop` counts it and goes on.
        remedy: what a user can do about a bad record, for the message.
        quoted: a record may go over several lines inside double quotes.
        rejected: rows left out, by reason.
    """

    parse: Callable[[bytes], pa.Table]
    policy: BadRows
    remedy: str
    quoted: bool = False
    rejected: dict[str, int] = field(default_factory=dict)

    def batches(self, path: str, block: Block) -> Iterator[pa.RecordBatch]:
        """Yield the block's good rows in order.

        Raises:
            BadRowError: a record cannot be read and the policy is `fail`; it names the line.
        """
        import pyarrow as pa

        try:
            table = self.parse(block.data)
        except pa.ArrowException:
            records = split_records(block.data, self.quoted)
            yield from self._salvage(path, block.first_line, records)
        else:
            yield from table.to_batches()

    def _salvage(
        self, path: str, first_line: int, records: Sequence[bytes]
    ) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        def parse(some: Sequence[bytes]) -> pa.Table:
            return self.parse(b"".join(some))

        for part in separate(records, parse, (pa.ArrowException,)):
            if isinstance(part, Good):
                yield from part.value.to_batches()
            elif self.policy == "drop":
                self.rejected["malformed line"] = self.rejected.get("malformed line", 0) + 1
            else:
                line = first_line + sum(one.count(b"\n") for one in records[: part.index])
                msg = (
                    f"{path}, line {line}: {_reason(part.error)}: "
                    f"{_preview(records[part.index])}; {self.remedy}, "
                    "or pass on_bad_rows='drop' to leave such lines out and count them"
                )
                raise BadRowError(msg)


def _reason(error: Exception) -> str:
    """Return Arrow's reason without the row numbers, which count within the piece parsed."""
    text = str(error).splitlines()[0].removesuffix(" in row 0").removeprefix("JSON parse error: ")
    return text.replace(" Row #1:", "").rstrip(".")


def _preview(record: bytes) -> str:
    text = record.rstrip(b"\r\n").decode("utf-8", "replace")
    return repr(text if len(text) <= _PREVIEW_BYTES else text[:_PREVIEW_BYTES] + "…")
