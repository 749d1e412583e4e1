"""Blocks of text to record batches, and the records that cannot be read.

Both text formats are parsed by Arrow a block at a time. Arrow rejects a block as a whole, without
saying reliably where; so a block that fails is taken apart until its bad records are known by line.
Where they are dropped, those that the format can tell by themselves are left out before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import compress, groupby
from typing import TYPE_CHECKING

from ...configs.errors import BadRowError
from .bad_rows import Bad, separate
from .base import BadRows
from .text_blocks import Block, count_lines
from .text_encoding import UTF_8, encoding_remedy, undecodable

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    FindMalformed = Callable[[Sequence[bytes]], "npt.NDArray[np.bool_] | None"]

_PREVIEW_BYTES = 80
BAD_QUOTES = "a quote that is not closed, or that is followed by more than the field's end"


@dataclass(frozen=True)
class Fault:
    """What is wrong with a record.

    Attributes:
        reason: for the message.
        remedy: what a user can do about it.
        counted_as: the name under which dropped records are counted.
    """

    reason: str
    remedy: str
    counted_as: str = "malformed line"

    @classmethod
    def of(cls, record: bytes, encoding: str, otherwise: Fault) -> Fault:
        """Return the fault of a record: that it is not in its encoding, or else another."""
        if not undecodable(record):
            return otherwise
        reason = f"not {encoding.upper()}"
        return cls(reason, encoding_remedy(encoding), reason)


_MALFORMED = Fault("malformed", "")


@dataclass
class BlockParser:
    """Turns blocks into record batches and deals with the records that cannot be read.

    Attributes:
        parse: turns whole records into a table, raising `pyarrow.ArrowException`.
        policy: `fail` refuses the first bad record, `drop` counts it and goes on.
        remedy: what a user can do about a bad record, for the message.
        encoding: what the file was decoded from.
        rejected: rows left out, by reason.
        find_malformed: tells for many records at once which are bad beyond doubt; None if it
            cannot tell.
    """

    parse: Callable[[bytes], pa.Table]
    policy: BadRows
    remedy: str
    encoding: str = UTF_8
    rejected: dict[str, int] = field(default_factory=dict)
    find_malformed: FindMalformed | None = None

    def batches(self, path: str, block: Block) -> Iterator[pa.RecordBatch]:
        """Yield the block's good rows in order.

        Raises:
            BadRowError: a record cannot be read and the policy is `fail`; it names the line.
        """
        import pyarrow as pa

        if not block.has_bad_quotes:
            try:
                table = self.parse(block.data)
            except pa.ArrowException:
                pass  # taken apart below
            else:
                yield from table.to_batches()
                return
        if self.policy == "drop":
            yield from self._without_malformed(block)
        else:
            yield from self._until_malformed(path, block)

    def _without_malformed(self, block: Block) -> Iterator[pa.RecordBatch]:
        """Yield the good rows, counting the bad ones; few parses however many are bad."""
        import pyarrow as pa

        records, bad_quotes = block.split()
        records = self._drop(records, bad_quotes)
        if self.find_malformed is not None:
            malformed = self.find_malformed(records)
            if malformed is not None:
                records = self._drop(records, malformed.tolist())
        for part in separate(records, self._parse_all, (pa.ArrowException,)):
            if isinstance(part, Bad):
                self._drop(records[part.index : part.index + 1], [True])
            else:
                yield from part.value.to_batches()

    def _drop(self, records: Sequence[bytes], bad: Sequence[bool]) -> list[bytes]:
        """Return the good records, counting the bad ones."""
        for record in compress(records, bad):
            fault = Fault.of(record, self.encoding, _MALFORMED)
            self.rejected[fault.counted_as] = self.rejected.get(fault.counted_as, 0) + 1
        return list(compress(records, (not one for one in bad)))

    def _parse_all(self, records: Sequence[bytes]) -> pa.Table:
        return self.parse(b"".join(records))

    def _until_malformed(self, path: str, block: Block) -> Iterator[pa.RecordBatch]:
        """Yield the good rows up to the first bad one, which is refused."""
        import pyarrow as pa

        records, bad_quotes = block.split()
        first = 0
        for bad, stretch in groupby(bad_quotes):
            rows = range(first, first + len(list(stretch)))
            first = rows.stop
            if bad:
                for row in rows:
                    self._reject(path, block, records, row, BAD_QUOTES)
                continue
            some = records[rows.start : rows.stop]
            for part in separate(some, self._parse_all, (pa.ArrowException,), rows.start):
                if isinstance(part, Bad):
                    self._reject(path, block, records, part.index, reason_of(part.error))
                else:
                    yield from part.value.to_batches()

    def _reject(
        self, path: str, block: Block, records: Sequence[bytes], index: int, reason: str
    ) -> None:
        record = records[index]
        fault = Fault.of(record, self.encoding, Fault(reason, self.remedy))
        line = block.first_line + sum(count_lines(one) for one in records[:index])
        msg = (
            f"{path}, line {line}: {fault.reason}: {_preview(record)}; {fault.remedy}, "
            "or pass on_bad_rows='drop' to leave such lines out and count them"
        )
        raise BadRowError(msg)


def no_line(path: str, block: Block, fault: Fault) -> str:
    """Return what is said of a file whose first block holds no record that can be read."""
    records, _ = block.split()
    first = next(index for index, one in enumerate(records) if one.strip())
    line = block.first_line + sum(count_lines(one) for one in records[:first])
    where = f"{path}, line {line} and all others of the first block"
    return f"{where}: {fault.reason}: {_preview(records[first])}; {fault.remedy}"


def reason_of(error: Exception) -> str:
    """Return Arrow's reason without the row numbers, which count within the piece parsed."""
    text = str(error).splitlines()[0].removesuffix(" in row 0").removeprefix("JSON parse error: ")
    return text.replace(" Row #1:", "").rstrip(".")


def _preview(record: bytes) -> str:
    text = record.rstrip(b"\r\n").decode("utf-8", "replace")
    return repr(text if len(text) <= _PREVIEW_BYTES else text[:_PREVIEW_BYTES] + "…")
