"""The 64 bytes before every message, little-endian.

::

     0              4    5    6         8              12            16
     ┌──────────────┬────┬────┬─────────┬──────────────┬─────────────┐
     │ magic "WHAL" │vers│kind│ flags   │ stream       │ source      │
     ├──────────────┼────┴────┴─────────┼──────────────┴─────────────┤ 16
     │ attempt      │ reserved, 0       │ sequence of the first row  │
     ├──────────────┼───────────────────┼────────────────────────────┤ 32
     │ row count    │ payload length    │ watermark, ns              │
     ├──────────────┴───────────────────┼─────────────┬──────────────┤ 48
     │ origin, ns; a marker's epoch     │ schema id   │ checksum     │
     └──────────────────────────────────┴─────────────┴──────────────┘ 64

A row's identity is (source, stream, attempt, sequence + its place): slices are cut by time, so a
replay cuts them elsewhere, and only row numbers stay. The checksum is the CRC-32 of the whole
message with 0 in its own place.
"""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from ...configs.errors import CorruptedMessageError, ForeignMessageError, TruncatedMessageError

if TYPE_CHECKING:
    import numpy.typing as npt

    Frame = npt.NDArray[np.uint8]

MAGIC: Final = 0x4C414857
"""The bytes ``WHAL``."""
VERSION: Final = 2
HEADER_BYTES: Final = 64

DATA: Final = 1
SCHEMA: Final = 2
WATERMARK: Final = 3
MARKER: Final = 4
KIND_NAMES: Final = {DATA: "data", SCHEMA: "schema", WATERMARK: "watermark", MARKER: "marker"}

ALL_FLAG: Final = 1
"""Every instance of the stream is addressed; no destinations follow."""
END_FLAG: Final = 2
"""The source sends nothing after this message."""
CHECKSUM_FLAG: Final = 4
TIMES_FLAG: Final = 8
"""The rows' hidden event times follow the columns."""
IDLE_FLAG: Final = 16
"""The source is idle until its next message: its watermark holds nobody back."""

STOP_FLAG: Final = 32
"""Sources read nothing after this marker."""

NO_WATERMARK: Final = -(1 << 63)
"""The source has not seen an event time yet."""

# The attempt and the reserved bytes are one number of 64 bits, whose upper half must be 0: so they
# are written and checked at no cost.
_HEADER: Final = struct.Struct("<IBBHIIQQIIqqII")
_ATTEMPT_MAX: Final = (1 << 32) - 1
_CHECKSUM_AT: Final = 60
_CHECKSUM: Final = struct.Struct("<I")
assert _HEADER.size == HEADER_BYTES


class Header(NamedTuple):
    """A message's header without magic and version."""

    kind: int
    """DATA, SCHEMA, WATERMARK or MARKER."""
    flags: int
    """ALL_FLAG, END_FLAG, CHECKSUM_FLAG, TIMES_FLAG, IDLE_FLAG, STOP_FLAG."""
    stream: int
    """The number of the producer's ring in the plan: one edge, from one worker, to its readers."""
    source: int
    """The producing instance."""
    attempt: int
    """Grows with each restart of the job; messages of older attempts are dropped."""
    sequence: int
    """Number of the first row within (source, stream, attempt)."""
    row_count: int
    payload_length: int
    """Bytes after the header."""
    watermark_ns: int
    """No later row of this source is older; NO_WATERMARK while unknown."""
    origin_ns: int
    """Monotonic ns at which a source read the oldest row; in a marker the number of its epoch."""
    schema_id: int
    checksum: int
    """0 without CHECKSUM_FLAG."""

    def pack_into(self, buffer: Frame) -> None:
        """Write the header into the first 64 bytes of a buffer."""
        target: Any = buffer
        _HEADER.pack_into(target, 0, MAGIC, VERSION, *self)

    @classmethod
    def unpack(cls, frame: Frame) -> Header:
        """Read a header and check that the frame holds the whole message.

        Raises:
            ForeignMessageError: magic, version, kind or the reserved bytes are not this version's.
            TruncatedMessageError: the frame is shorter than the message.
        """
        if frame.size < HEADER_BYTES:
            msg = f"a message of {frame.size} bytes; its header alone takes {HEADER_BYTES}"
            raise TruncatedMessageError(msg)
        source: Any = frame
        magic, version, *rest = _HEADER.unpack_from(source)
        header = cls._make(rest)
        if magic != MAGIC or version != VERSION or header.kind not in KIND_NAMES:
            raise ForeignMessageError(_foreign(magic, version, header.kind))
        if header.attempt > _ATTEMPT_MAX:
            msg = "a message whose reserved bytes are not 0"
            raise ForeignMessageError(msg)
        if HEADER_BYTES + header.payload_length > frame.size:
            msg = (
                f"{header.describe()} has {header.payload_length} bytes of payload, "
                f"of which {frame.size - HEADER_BYTES} are here"
            )
            raise TruncatedMessageError(msg)
        return header

    @property
    def to_all(self) -> bool:
        """Whether every instance is addressed."""
        return bool(self.flags & ALL_FLAG)

    @property
    def is_end(self) -> bool:
        """Whether the source sends nothing after this message."""
        return bool(self.flags & END_FLAG)

    @property
    def is_idle(self) -> bool:
        """Whether the source is idle until its next message."""
        return bool(self.flags & IDLE_FLAG)

    def describe(self) -> str:
        """Return the message's identity for error messages."""
        return (
            f"{KIND_NAMES.get(self.kind, 'unknown')} message {self.sequence} of stream "
            f"{self.stream}, source {self.source}, attempt {self.attempt}"
        )


def seal(buffer: Frame, length: int) -> None:
    """Write the checksum of a message of `length` bytes; its header's checksum is still 0."""
    target: Any = buffer
    _CHECKSUM.pack_into(target, _CHECKSUM_AT, _crc(buffer, length))


def verify(frame: Frame, header: Header) -> None:
    """Check a message's checksum, if it has one.

    Raises:
        CorruptedMessageError: it differs.
    """
    if not header.flags & CHECKSUM_FLAG:
        return
    found = _crc(frame, HEADER_BYTES + header.payload_length)
    if found != header.checksum:
        msg = (
            f"{header.describe()} has checksum {header.checksum:#010x}, "
            f"its bytes give {found:#010x}"
        )
        raise CorruptedMessageError(msg)


def _crc(message: Frame, length: int) -> int:
    before: Any = message[:_CHECKSUM_AT]
    after: Any = message[HEADER_BYTES:length]
    return zlib.crc32(after, zlib.crc32(bytes(4), zlib.crc32(before)))


def _foreign(magic: int, version: int, kind: int) -> str:
    if magic != MAGIC:
        return f"not a message of whale-ray: it starts with {magic:#010x} instead of {MAGIC:#010x}"
    if version != VERSION:
        return (
            f"a message of wire version {version}, this whale-ray reads {VERSION}; "
            f"run one version of whale-ray everywhere"
        )
    return f"a message of unknown kind {kind}"
