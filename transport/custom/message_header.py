"""The header of every message of a custom transport, which shows any fault of the transport.

::

    byte 0      4        8         12       16       20       24       28       32
         +-------+--------+---------+--------+--------+--------+--------+--------+-----
         | magic | stream | attempt | length | number          | frame  | offset | bytes
         +-------+--------+---------+--------+--------+--------+--------+--------+-----

All little-endian and unsigned. `length` counts the bytes after the header, which are those from
`offset` on of a frame of `frame` bytes; `number` counts the stream's messages, from 0. The last
message of a stream has no bytes, and `offset` is 0xFFFFFFFF.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

_LAYOUT: Final = struct.Struct("<IIIIQII")
_MAGIC: Final = int.from_bytes(b"WHPM", "little")
_LAST: Final = 0xFFFF_FFFF

HEADER_BYTES: Final = _LAYOUT.size


class MessageHeader(NamedTuple):
    """The 32 bytes before a message's bytes."""

    stream: int
    attempt: int
    length: int
    number: int
    frame: int
    offset: int

    @property
    def is_last(self) -> bool:
        """Whether the sender sends nothing after it."""
        return self.offset == _LAST

    def pack_into(self, buffer: memoryview, at: int) -> None:
        """Write it into `buffer` from byte `at` on."""
        _LAYOUT.pack_into(buffer, at, _MAGIC, *self)


def last_header(stream: int, attempt: int, number: int) -> MessageHeader:
    """Return the header that ends a stream of `number` messages."""
    return MessageHeader(stream, attempt, 0, number, 0, _LAST)


def read_header(data: memoryview) -> MessageHeader | None:
    """Return the header of a message; None if the bytes are no message of a sender."""
    if data.nbytes < HEADER_BYTES:
        return None
    magic, *fields = _LAYOUT.unpack_from(data)
    return MessageHeader(*fields) if magic == _MAGIC else None
