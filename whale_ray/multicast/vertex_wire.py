"""The messages between the vertices of a tree as bytes: 40 bytes each, little-endian.

They are control messages of the links between hosts, which deliver them once and in order. ::

     0              4    5    6         8              12
     ┌──────────────┬────┬────┬─────────┬──────────────┬─────────────┐ 16
     │ magic "WHMC" │vers│kind│ 0       │ stream       │ vertex      │
     ├──────────────┴────┴────┴─────────┼──────────────┴─────────────┤ 32
     │ term                             │ epoch                      │
     ├──────────────────────────────────┼────────────────────────────┘
     │ position                         │ 40
     └──────────────────────────────────┘

===============  =================================================================================
LEAVE            *vertex*, the sender, needs nothing more of *stream* from the receiver; its
                 requests for bytes before *position* are void
LEFT             *vertex*, the sender, keeps nothing more for the receiver
FETCH            *vertex*, the sender, reads *stream* from the receiver, the root, at *position*
ACKNOWLEDGEMENT  all of the sender's subtree, in the tree *epoch*, have *stream* up to *position*
===============  =================================================================================

A field that a kind does not mention is 0, except term and epoch.
"""

from __future__ import annotations

import struct
from typing import Final, TypeAlias

from ..configs.errors import CorruptedMessageError, ForeignMessageError, TruncatedMessageError
from .floors import NEVER, Acknowledgement
from .switch_messages import Fetch, Leave, Left

VertexMessage: TypeAlias = Leave | Left | Fetch | Acknowledgement

MAGIC: Final = 0x434D4857
"""The bytes ``WHMC``."""
VERSION: Final = 1
MESSAGE_BYTES: Final = 40

_LEAVE: Final = 1
_LEFT: Final = 2
_FETCH: Final = 3
_ACKNOWLEDGEMENT: Final = 4
_POSITION_MAX: Final = (1 << 62) - 1
_LAYOUT: Final = struct.Struct("<IBBHIIQqq")
assert _LAYOUT.size == MESSAGE_BYTES


def pack(stream: int, message: VertexMessage) -> bytes:
    """Return a message about `stream`; its vertices are numbers.

    Raises struct.error for a number that does not fit its field.
    """
    kind, vertex, term, epoch, position = _LEAVE, 0, 0, message.epoch, 0
    match message:
        case Acknowledgement():
            kind, position = _ACKNOWLEDGEMENT, message.position
        case Fetch():
            kind, vertex, term = _FETCH, int(message.vertex), message.term
            position = message.position
        case Leave():
            vertex, term, position = int(message.vertex), message.term, message.position
        case Left():
            kind, vertex, term = _LEFT, int(message.parent), message.term
    return _LAYOUT.pack(MAGIC, VERSION, kind, 0, stream, vertex, term, epoch, position)


def unpack(content: bytes) -> tuple[int, VertexMessage]:
    """Return the stream that a message is about, and the message.

    Raises TruncatedMessageError, ForeignMessageError or CorruptedMessageError for all that `pack`
    does not return.
    """
    if len(content) != MESSAGE_BYTES:
        msg = f"a message between vertices has {MESSAGE_BYTES} bytes, not {len(content)}"
        raise TruncatedMessageError(msg)
    fields = _LAYOUT.unpack(content)
    magic, version, kind, zero, stream, vertex, term, epoch, position = fields
    if magic != MAGIC or version != VERSION:
        msg = f"no message between vertices: magic {magic:#010x}, version {version}"
        raise ForeignMessageError(msg)
    acknowledges = kind == _ACKNOWLEDGEMENT
    is_valid = (
        zero == 0
        and (NEVER if acknowledges else 0) <= epoch <= _POSITION_MAX
        and 0 <= position <= _POSITION_MAX
        and (position == 0 or kind != _LEFT)
        and (not acknowledges or vertex == term == 0)
    )
    if not is_valid or kind not in {_LEAVE, _LEFT, _FETCH, _ACKNOWLEDGEMENT}:
        msg = f"a message between vertices makes no sense: {fields[2:]}"
        raise CorruptedMessageError(msg)
    if kind == _LEAVE:
        return stream, Leave(term, epoch, vertex, position)
    if kind == _LEFT:
        return stream, Left(term, epoch, vertex)
    if kind == _FETCH:
        return stream, Fetch(term, epoch, vertex, position)
    return stream, Acknowledgement(epoch, position)
