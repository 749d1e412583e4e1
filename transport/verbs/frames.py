"""Letters: what two hosts SEND each other over a queue pair, and the credits that bound them.

Pure: bytes and counts. A letter fills one receive buffer of the peer. It says how many of the
peer's letters have been given back in all, and holds items, each on a boundary of 8 bytes::

     0                       8                16
     ┌───────────────────────┬────────┬───────┬──────────────────────┬ ─ ─
     │ letters given back    │ kind   │ bytes │ content, padded to 8 │ next item
     └───────────────────────┴────────┴───────┴──────────────────────┴ ─ ─

=======  ==========================================================================================
BYTES    a part of the link's messages (links/messages.py), in order; a header is never cut
FETCH    the header of a DATA message whose payload the receiver READs out of the sender's ring
PLACED   the header of a DATA message whose payload was written into the receiver's mirror before
MEMORY   where the sender's ring or mirror of a stream lies, and its key
FENCE    answer with FENCED once everything before this is done
FENCED   the answer, with the number of the question
SLOTS    where the sender's slots of a push channel are, and their key
=======  ==========================================================================================

All of them are of one order with what the queue pair carries besides: a PLACED comes after the
bytes that it speaks of.

Who has no credit waits: a letter without a receive buffer would break the queue pair. The last two
credits are kept for letters that do nothing but give credits back.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from ...configs.errors import CorruptedMessageError, ProtocolError

BYTES: Final = 1
FETCH: Final = 2
PLACED: Final = 3
MEMORY: Final = 4
FENCE: Final = 5
FENCED: Final = 6
SLOTS: Final = 7

LETTER_BYTES: Final = 1 << 15
LETTERS: Final = 64
"""Receive buffers of one side."""
LETTER_HEADER_BYTES: Final = 8
ITEM_HEADER_BYTES: Final = 8
ITEMS_MAX: Final = LETTER_BYTES // 16 + 1
"""Of one letter, and its end."""
ROOM_KEPT: Final = 8
"""Requests of a queue pair that are left to letters."""
_CREDITS_KEPT: Final = 2

_COUNT: Final = struct.Struct("<Q")
_ITEM: Final = struct.Struct("<II")
_MEMORY: Final = struct.Struct("<IIQQ")
_SLOTS: Final = struct.Struct("<IIQII")
_NUMBER: Final = struct.Struct("<Q")
_LENGTHS: Final = {FETCH: 32, PLACED: 32, MEMORY: _MEMORY.size, FENCE: 8, FENCED: 8, SLOTS: 24}
_COUNT_MAX: Final = 1 << 62


class Memory(NamedTuple):
    """Where a stream's ring, or its mirror, lies in its owner's process."""

    stream: int
    rkey: int
    address: int
    capacity: int

    def encode(self) -> bytes:
        """Return the content of a MEMORY."""
        return _MEMORY.pack(*self)

    @classmethod
    def decode(cls, content: memoryview) -> Memory:
        """Read the content of a MEMORY."""
        return cls(*_MEMORY.unpack(content))


class Slots(NamedTuple):
    """Where the slots of a push channel are in their owner's process."""

    channel: int
    rkey: int
    address: int
    slots: int
    slot_bytes: int

    def encode(self) -> bytes:
        """Return the content of a SLOTS."""
        return _SLOTS.pack(*self)

    @classmethod
    def decode(cls, content: memoryview) -> Slots:
        """Read the content of a SLOTS."""
        return cls(*_SLOTS.unpack(content))


def encode_number(number: int) -> bytes:
    """Return the content of a FENCE or FENCED."""
    return _NUMBER.pack(number)


def decode_number(content: memoryview) -> int:
    """Read the content of a FENCE or FENCED."""
    return int(_NUMBER.unpack(content)[0])


def put_header(letter: memoryview, given_back: int) -> int:
    """Begin a letter; return where its items go."""
    _COUNT.pack_into(letter, 0, given_back)
    return LETTER_HEADER_BYTES


def put_item(letter: memoryview, at: int, kind: int, nbytes: int) -> int:
    """Write an item's header; return where its content goes."""
    _ITEM.pack_into(letter, at, kind, nbytes)
    return at + ITEM_HEADER_BYTES


def behind(at: int) -> int:
    """Return where the item behind content that ends at `at` begins."""
    return (at + 7) & -8


def given_back_by(letter: memoryview) -> int:
    """Return how many letters the sender has given back. Raises CorruptedMessageError."""
    if len(letter) < LETTER_HEADER_BYTES:
        msg = f"a letter of {len(letter)} bytes: its header alone takes {LETTER_HEADER_BYTES}"
        raise CorruptedMessageError(msg)
    return int(_COUNT.unpack_from(letter)[0])


def items_of(letter: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Yield kind and content of each item. Raises CorruptedMessageError for nonsense."""
    at, end = LETTER_HEADER_BYTES, len(letter)
    while at < end:
        if end - at < ITEM_HEADER_BYTES:
            msg = f"a letter ends {end - at} bytes behind its last item"
            raise CorruptedMessageError(msg)
        kind, nbytes = _ITEM.unpack_from(letter, at)
        at += ITEM_HEADER_BYTES
        fixed = _LENGTHS.get(kind)
        right = nbytes >= 1 if kind == BYTES else nbytes == fixed
        if not right or nbytes > end - at:
            msg = f"a letter holds an item of kind {kind} with {nbytes:,} bytes"
            raise CorruptedMessageError(msg)
        yield kind, letter[at : at + nbytes]
        at = behind(at + nbytes)


class Credits:
    """How many letters may be sent, and how many are to be given back."""

    __slots__ = ("_buffers", "_half", "_told", "given_back", "returned", "sent")

    def __init__(self, peers_buffers: int, own_buffers: int) -> None:
        """Begin with a credit for each of the peer's buffers."""
        self._buffers = peers_buffers
        self._half = own_buffers // 2
        self._told = 0
        self.sent = 0
        """Letters sent."""
        self.returned = 0
        """Those of them that the peer has given back."""
        self.given_back = 0
        """The peer's letters whose buffers it may fill again."""

    @property
    def may_send(self) -> bool:
        """Whether a letter with something in it may be sent."""
        return self.sent - self.returned < self._buffers - _CREDITS_KEPT

    @property
    def should_return(self) -> bool:
        """Whether credits are worth, and allowed, a letter of their own."""
        owed = self.given_back - self._told
        return owed >= self._half and self.sent - self.returned < self._buffers

    def wrote(self) -> int:
        """Take note that a letter is sent; return what it says of those given back."""
        self.sent += 1
        self._told = self.given_back
        return self.given_back

    def told(self, given_back: int) -> None:
        """Take note of what a letter says. Raises ProtocolError if it cannot be so."""
        if not self.returned <= given_back <= self.sent or given_back > _COUNT_MAX:
            msg = f"the peer gives {given_back:,} letters back of {self.sent:,} sent"
            raise ProtocolError(msg)
        self.returned = given_back
