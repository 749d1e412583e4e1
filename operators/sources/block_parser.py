"""Parses blocks of text into record batches, and reports or drops malformed records.

Both text formats are parsed by Arrow, one block at a time. Arrow rejects a block as a whole without
a reliable position of the error, so a block that fails is bisected until its malformed records are
found: about ten parses for each. If malformed records are dropped, those that the format recognizes
by their text are left out before, and those that it suspects are parsed one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import compress, groupby
from typing import TYPE_CHECKING

from ...configs.errors import BadRowError
from .bad_rows import Bad, separate
from .base import BadRows
from .text_blocks import TextBlock, count_lines
from .text_encoding import UTF_8, encoding_remedy, undecodable

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    FindRecords = Callable[[Sequence[bytes]], "npt.NDArray[np.bool_] | None"]

_PREVIEW_BYTES = 80
BAD_QUOTES = "a quote that is not closed, or that is followed by more than the field's end"


@dataclass(frozen=True)
class Fault:
    """Why a record cannot be read.

    Attributes:
        reason: the cause, for the error message.
        remedy: what the user can do, for the error message.
        counted_as: the reason under which dropped records are counted.
    """

    reason: str
    remedy: str
    counted_as: str = "malformed line"

    @classmethod
    def of(cls, record: bytes, encoding: str, otherwise: Fault) -> Fault:
        """Return an encoding fault if the record cannot be decoded, else `otherwise`."""
        if not undecodable(record):
            return otherwise
        reason = f"not {encoding.upper()}"
        return cls(reason, encoding_remedy(encoding), reason)


_MALFORMED = Fault("malformed", "")


@dataclass
class BlockParser:
    """Parses blocks into record batches and applies the policy for malformed records.

    Attributes:
        parse: parses whole records into a table; raises `pyarrow.ArrowException`.
        policy: `fail` raises for the first malformed record, `drop` counts them.
        remedy: what the user can do about a malformed record, for the error message.
        encoding: the encoding that the file was decoded from.
        rejected: the number of dropped rows by reason.
        find_malformed: marks, in one pass, records that are certainly malformed; it returns None
            if it cannot decide.
        find_suspicious: likewise marks records that may be malformed; asked if parsing the others
            at once fails.
    """

    parse: Callable[[bytes], pa.Table]
    policy: BadRows
    remedy: str
    encoding: str = UTF_8
    rejected: dict[str, int] = field(default_factory=dict)
    find_malformed: FindRecords | None = None
    find_suspicious: FindRecords | None = None

    def batches(self, path: str, block: TextBlock) -> Iterator[pa.RecordBatch]:
        """Yield the block's good rows in order.

        Raises:
            BadRowError: a record cannot be read and the policy is `fail`; it names the line.
        """
        import pyarrow as pa

        if not block.has_bad_quotes:
            try:
                table = self.parse(block.data)
            except pa.ArrowException:
                pass  # bisected below
            else:
                yield from table.to_batches()
                return
        if self.policy == "drop":
            yield from self._without_malformed(block)
        else:
            yield from self._until_malformed(path, block)

    def _without_malformed(self, block: TextBlock) -> Iterator[pa.RecordBatch]:
        """Yield the good rows and count the malformed ones, with few calls of `parse`."""
        import pyarrow as pa

        records, bad_quotes = block.split()
        records = self._drop(records, bad_quotes)
        if self.find_malformed is not None:
            malformed = self.find_malformed(records)
            if malformed is not None:
                records = self._drop(records, malformed.tolist())
        if self.find_suspicious is not None and records:
            try:
                table = self._parse_all(records)
            except pa.ArrowException:
                records = self._drop_suspicious(records, self.find_suspicious(records))
            else:
                yield from table.to_batches()
                return
        for part in separate(records, self._parse_all, (pa.ArrowException,)):
            if isinstance(part, Bad):
                self._drop(records[part.index : part.index + 1], [True])
            else:
                yield from part.value.to_batches()

    def _drop(self, records: Sequence[bytes], bad: Sequence[bool]) -> list[bytes]:
        """Return the good records and count the bad ones."""
        for record in compress(records, bad):
            fault = Fault.of(record, self.encoding, _MALFORMED)
            self.rejected[fault.counted_as] = self.rejected.get(fault.counted_as, 0) + 1
        return list(compress(records, (not one for one in bad)))

    def _drop_suspicious(
        self, records: list[bytes], suspicious: npt.NDArray[np.bool_] | None
    ) -> list[bytes]:
        """Return the records without those suspicious ones that cannot be parsed alone."""
        if suspicious is None:
            return records
        pairs = zip(records, suspicious.tolist(), strict=True)
        return self._drop(records, [suspected and self._fails(one) for one, suspected in pairs])

    def _fails(self, record: bytes) -> bool:
        import pyarrow as pa

        try:
            self.parse(record)
        except pa.ArrowException:
            return True
        return False

    def _parse_all(self, records: Sequence[bytes]) -> pa.Table:
        return self.parse(b"".join(records))

    def _until_malformed(self, path: str, block: TextBlock) -> Iterator[pa.RecordBatch]:
        """Yield the rows before the first malformed record, then raise for it."""
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
        self, path: str, block: TextBlock, records: Sequence[bytes], index: int, reason: str
    ) -> None:
        record = records[index]
        fault = Fault.of(record, self.encoding, Fault(reason, self.remedy))
        line = block.first_line + sum(count_lines(one) for one in records[:index])
        msg = (
            f"{path}, line {line}: {fault.reason}: {_preview(record)}; {fault.remedy}, "
            "or pass on_bad_rows='drop' to leave such lines out and count them"
        )
        raise BadRowError(msg)


def no_line(path: str, block: TextBlock, fault: Fault) -> str:
    """Return the error message for a file whose first block holds no readable record."""
    records, _ = block.split()
    first = next(index for index, one in enumerate(records) if one.strip())
    line = block.first_line + sum(count_lines(one) for one in records[:first])
    where = f"{path}, line {line} and all others of the first block"
    return f"{where}: {fault.reason}: {_preview(records[first])}; {fault.remedy}"


def reason_of(error: Exception) -> str:
    """Return Arrow's reason without row numbers, which are relative to the part parsed."""
    text = str(error).splitlines()[0].removesuffix(" in row 0").removeprefix("JSON parse error: ")
    return text.replace(" Row #1:", "").rstrip(".")


def _preview(record: bytes) -> str:
    text = record.rstrip(b"\r\n").decode("utf-8", "replace")
    return repr(text if len(text) <= _PREVIEW_BYTES else text[:_PREVIEW_BYTES] + "…")
