"""The 32 bytes before everything that two hosts tell each other, little-endian.

::

     0              4    5    6         8              12            16
     ┌──────────────┬────┬────┬─────────┬──────────────┬─────────────┐
     │ magic "WHLK" │vers│kind│ detail  │ sequence     │ stream      │
     ├──────────────┴────┴────┴─────────┼──────────────┼─────────────┤ 32
     │ position                         │ extra        │ length      │ + length bytes
     └──────────────────────────────────┴──────────────┴─────────────┘

*Sequence* numbers the messages of one connection and direction from 0, modulo 2**32. What the
other fields mean depends on the kind; those not named are 0:

=========  ========================================================================================
DATA       `length` bytes of ring `stream`, which belong at `position`; both are multiples of 64;
           they answer subscription number `detail`
SUBSCRIBE  I have every byte of `stream` before `position`; you may send `extra` bytes beyond; my
           mirror has 2**(`detail` & 31) bytes; this is my subscription number `detail` >> 5
GRANT      the same, later: I have every byte before `position`, you may send `extra` bytes beyond
FINISHED   `stream` ends at `position`; this answers subscription number `detail`
HEARTBEAT  `detail` 0: my clock says `position` ns; 1: your clock said so, back to you. Of the
           control messages that bear your mark `stream`, I have `extra` (modulo 2**32)
CONTROL    `length` bytes of my control message number `position`; `extra` is my mark
GOODBYE    I want `stream` no more; with `stream` NO_STREAM: I close this connection on purpose
=========  ========================================================================================

A child that leaves a stream and comes back to it over the same connection may still be sent what
it was to get before: the number of the subscription tells the one from the other.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from ...configs.errors import CorruptedMessageError, ForeignMessageError, TruncatedMessageError
from ..ring_layout import FRAME_ALIGNMENT, RING_BYTES_MAX

MAGIC: Final = 0x4B4C4857
"""The bytes ``WHLK``."""
VERSION: Final = 3
HEADER_BYTES: Final = 32

DATA: Final = 1
SUBSCRIBE: Final = 2
GRANT: Final = 3
FINISHED: Final = 4
HEARTBEAT: Final = 5
CONTROL: Final = 6
GOODBYE: Final = 7
KIND_NAMES: Final = {
    DATA: "data",
    SUBSCRIBE: "subscribe",
    GRANT: "grant",
    FINISHED: "finished",
    HEARTBEAT: "heartbeat",
    CONTROL: "control",
    GOODBYE: "goodbye",
}

NUMBER_MASK: Final = (1 << 11) - 1
"""Subscriptions of one stream are numbered modulo 2**11."""
CAPACITY_BITS: Final = 5
"""Of the detail of SUBSCRIBE; the number stands above them."""
_EXPONENT_MAX: Final = RING_BYTES_MAX.bit_length() - 1

NO_STREAM: Final = (1 << 32) - 1
SEQUENCE_MASK: Final = (1 << 32) - 1
POSITION_MAX: Final = (1 << 62) - 1
DATA_BYTES_MAX: Final = 1 << 20
"""Of one message."""
CONTROL_BYTES_MAX: Final = 1 << 16

ECHO: Final = 1
"""The detail of a heartbeat that answers one."""

_HEADER: Final = struct.Struct("<IBBHIIQII")
_pack = _HEADER.pack
_unpack = _HEADER.unpack_from
_PAYLOAD: Final = struct.Struct("<6xH4xIQ4xI")
assert _HEADER.size == _PAYLOAD.size == HEADER_BYTES

# By kind: the least and the largest length.
_LENGTHS: Final = {
    DATA: (FRAME_ALIGNMENT, DATA_BYTES_MAX),
    CONTROL: (1, CONTROL_BYTES_MAX),
}
_NOTHING: Final = (0, 0)


class LinkHeader(NamedTuple):
    """The fields of a message that follow its magic and version."""

    kind: int
    detail: int
    sequence: int
    stream: int
    position: int
    extra: int
    length: int


def encode(
    kind: int,
    sequence: int,
    stream: int = 0,
    position: int = 0,
    extra: int = 0,
    length: int = 0,
    detail: int = 0,
) -> bytes:
    """Return the header of a message; `sequence` is taken modulo 2**32.

    Raises struct.error for a number that does not fit its field.
    """
    sequence &= SEQUENCE_MASK
    return _pack(MAGIC, VERSION, kind, detail, sequence, stream, position, extra, length)


payload_of: Final = _PAYLOAD.unpack_from
"""Returns detail, stream, position and length of a header that `encode` wrote, unchecked."""


def decode(buffer: bytes | bytearray | memoryview) -> LinkHeader:
    """Read the header at the start of `buffer`, and believe nothing.

    Raises TruncatedMessageError for less than 32 bytes, ForeignMessageError for another magic,
    version or kind, and CorruptedMessageError for a field that its kind cannot have: an empty or
    endless payload, a position out of range or not on a frame's boundary.
    """
    if len(buffer) < HEADER_BYTES:
        msg = f"a link message of {len(buffer)} bytes: its header alone takes {HEADER_BYTES}"
        raise TruncatedMessageError(msg)
    magic, version, kind, detail, sequence, stream, position, extra, length = _unpack(buffer)
    if magic != MAGIC or version != VERSION or kind not in KIND_NAMES:
        raise _foreign(magic, version, kind)
    low, high = _LENGTHS.get(kind, _NOTHING)
    if not low <= length <= high:
        msg = f"a {KIND_NAMES[kind]} message of {length:,} bytes: from {low:,} to {high:,} may be"
        raise CorruptedMessageError(msg)
    # One comparison for the commonest kind, the rest is asked of the others alone.
    if position > POSITION_MAX or (kind == DATA and (position | length) % FRAME_ALIGNMENT):
        msg = f"a {KIND_NAMES[kind]} message of {length:,} bytes at position {position:,}"
        raise CorruptedMessageError(msg)
    if kind != DATA:
        _check_fields(kind, detail, stream, position, extra)
    elif detail > NUMBER_MASK or extra:
        raise _unused(kind)
    return LinkHeader(kind, detail, sequence, stream, position, extra, length)


def _foreign(magic: int, version: int, kind: int) -> ForeignMessageError:
    if magic != MAGIC:
        msg = f"no message of a link: it begins with {magic:#010x}, not {MAGIC:#010x}"
    elif version != VERSION:
        msg = (
            f"a link message of version {version}, this is version {VERSION}: all hosts of a job "
            "must run the same version of whale-ray"
        )
    else:
        msg = f"a link message of the unknown kind {kind}"
    return ForeignMessageError(msg)


def _check_fields(kind: int, detail: int, stream: int, position: int, extra: int) -> None:
    """Check what decode has not: the fields that some kinds use and others leave 0."""
    if kind in {SUBSCRIBE, GRANT}:
        exponent = detail & ((1 << CAPACITY_BITS) - 1)
        known = exponent <= _EXPONENT_MAX if kind == SUBSCRIBE else detail == 0
        good = known and extra <= RING_BYTES_MAX and position % FRAME_ALIGNMENT == 0
    elif kind == FINISHED:
        good = not (detail > NUMBER_MASK or extra or position % FRAME_ALIGNMENT)
    elif kind == HEARTBEAT:
        good = detail <= ECHO
    elif kind == CONTROL:
        good = not (detail or stream)
    else:
        good = not (detail or extra or position)
    if not good:
        raise _unused(kind)


def _unused(kind: int) -> CorruptedMessageError:
    msg = f"a {KIND_NAMES[kind]} message with a field that it cannot have"
    return CorruptedMessageError(msg)
