"""Positions of a stream on both sides, as values: whatever happens to the link, no byte is lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from whale_ray.configs.errors import ProtocolError
from whale_ray.transport.links.streams import StreamReceiver, StreamSender

CAPACITY = 4096
TURN = 512
DELAY_NS = 1000


class Stream(RuleBasedStateMachine):
    """A ring, a mirror and a wire in both directions that may be cut at any time."""

    @initialize()
    def begin(self) -> None:
        self.sender = StreamSender(CAPACITY)
        self.receiver = StreamReceiver(CAPACITY, DELAY_NS)
        self.ends: list[int] = []  # of frames in the producer's ring
        self.head = self.tail = self.reader = 0
        self.now_ns = 0
        self.forth: list[tuple[int, int]] = []
        self.back: list[tuple[str, int, int]] = []
        self.arrived: list[tuple[int, int]] = []
        self.up = False

    def whole_frames(self, start: int, limit: int, max_bytes: int) -> int:
        ends = [end for end in self.ends if start < end <= limit]
        if not ends:
            return start
        return max([end for end in ends if end - start <= max_bytes], default=ends[0])

    @rule(size=st.sampled_from([64, 128, 192, 960, 1024]))
    def produce(self, size: int) -> None:
        if self.head + size - self.tail <= CAPACITY:
            self.head += size
            self.ends.append(self.head)

    @precondition(lambda self: not self.up)
    @rule()
    def connect(self) -> None:
        self.up = True
        grant = self.receiver.subscription(self.reader + CAPACITY)
        self.back.append(("subscribe", *grant))

    @precondition(lambda self: self.up)
    @rule()
    def cut(self) -> None:
        self.up = False
        self.forth.clear()
        self.back.clear()
        self.sender.disconnected()

    @rule()
    def send(self) -> None:
        found = self.sender.next_range(self.whole_frames, TURN)
        if found is not None:
            start, stop = found
            assert self.up, "nothing is sent before the child subscribes on the new link"
            assert start < stop <= start + TURN
            assert self.tail <= start, "these bytes may be overwritten by now"
            assert stop <= self.head
            self.forth.append(found)

    @rule()
    def receive(self) -> None:
        if self.forth:
            start, stop = self.forth.pop(0)
            assert self.receiver.check(start, stop - start), "nothing is sent twice"
            assert stop - self.reader <= CAPACITY, "a reader's bytes are overrun"
            self.receiver.arrived(stop - start)
            self.arrived.append((start, stop))

    @rule(size=st.integers(1, 40))
    def read(self, size: int) -> None:
        self.reader = min(self.receiver.received, self.reader + 64 * size)

    @rule(passed_ns=st.sampled_from([0, DELAY_NS]))
    def grant(self, passed_ns: int) -> None:
        self.now_ns += passed_ns
        if self.up:
            grant = self.receiver.grant_due(self.reader + CAPACITY, self.now_ns)
            if grant is not None:
                self.back.append(("grant", *grant))

    @rule()
    def hear(self) -> None:
        if self.back:
            kind, received, limit = self.back.pop(0)
            (self.sender.subscribed if kind == "subscribe" else self.sender.granted)(
                received, limit
            )
            self.tail = self.sender.acknowledged

    @invariant()
    def every_byte_arrived_once_and_in_order(self) -> None:
        position = 0
        for start, stop in self.arrived:
            assert start == position
            position = stop
        assert position == self.receiver.received <= self.head
        assert self.sender.consumed <= self.reader

    def teardown(self) -> None:
        """Check that the rest arrives, whatever happened before."""
        if self.up:
            self.cut()
        self.connect()
        for _ in range(400):
            self.hear()
            self.send()
            self.receive()
            self.read(64)
            self.grant(DELAY_NS)
        assert self.receiver.received == self.head == self.sender.acknowledged
        assert self.sender.limit == self.head + CAPACITY


TestStream = Stream.TestCase


def subscribed(received: int = 0, limit: int = CAPACITY) -> StreamSender:
    sender = StreamSender(CAPACITY)
    sender.subscribed(received, limit)
    return sender


def everything(_start: int, limit: int, _max_bytes: int) -> int:
    return limit


@pytest.mark.parametrize(
    ("received", "limit", "why"),
    [
        (64, CAPACITY, "has 64 bytes of a stream, of which 0 were acknowledged and 0 sent"),
        (0, CAPACITY + 64, "a mirror of 4,096 bytes"),
        (0, CAPACITY - 64, "up to 4,032 after 4,096"),
    ],
)
def test_impossible_grants_are_refused(received, limit, why):
    sender = subscribed()
    with pytest.raises(ProtocolError, match=why):
        sender.granted(received, limit)


def test_a_grant_never_goes_back():
    sender = subscribed()
    assert sender.next_range(everything, TURN) == (0, TURN)
    sender.granted(TURN, CAPACITY)
    with pytest.raises(ProtocolError, match="of which 512 were acknowledged"):
        sender.granted(448, CAPACITY)
    sender.disconnected()
    with pytest.raises(ProtocolError, match="of which 512 were acknowledged"):
        sender.subscribed(0, CAPACITY)


def test_a_grant_needs_a_subscription_on_the_same_link():
    sender = subscribed()
    sender.disconnected()
    with pytest.raises(ProtocolError, match="was not subscribed on this link"):
        sender.granted(0, CAPACITY)


def test_impossible_data_is_refused():
    receiver = StreamReceiver(CAPACITY, DELAY_NS)
    receiver.subscription(CAPACITY)
    with pytest.raises(ProtocolError, match="for position 64, but 0 is next: some is lost"):
        receiver.check(64, 64)
    with pytest.raises(ProtocolError, match="up to position 4,160, but only 4,096"):
        receiver.check(0, CAPACITY + 64)
    receiver.finished(128)
    with pytest.raises(ProtocolError, match="of a stream that ended at 128"):
        receiver.check(0, 192)
    with pytest.raises(ProtocolError, match="whose end was 128"):
        receiver.finished(192)
    assert receiver.check(0, 128)
    receiver.arrived(128)
    assert receiver.complete
    assert not receiver.check(64, 64), "a duplicate"
    with pytest.raises(ProtocolError, match="ends at 64, of which 128 bytes are here"):
        receiver.finished(64)


def test_small_grants_wait_for_more_and_large_ones_do_not():
    receiver = StreamReceiver(CAPACITY, DELAY_NS)
    receiver.subscription(CAPACITY)
    receiver.arrived(64)
    assert receiver.grant_due(CAPACITY, 0) is None
    assert receiver.due_ns == DELAY_NS
    assert receiver.grant_due(CAPACITY, DELAY_NS) == (64, CAPACITY)
    assert receiver.grant_due(CAPACITY, 2 * DELAY_NS) is None
    receiver.arrived(CAPACITY // 4)
    assert receiver.grant_due(CAPACITY, 0) == (1088, CAPACITY)
    assert receiver.grant_due(CAPACITY + CAPACITY // 4, 0) == (1088, CAPACITY + 1024)


@given(
    received=st.integers(0, 64).map(lambda n: n * 64),
    held=st.integers(0, 64).map(lambda n: n * 64),
    granted=st.integers(0, 64).map(lambda n: n * 64),
)
def test_the_readers_ring_as_soon_as_a_grant_is_due_at_once(received, held, granted):
    """Else a relay that sleeps would leave its parent waiting."""
    receiver = StreamReceiver(CAPACITY, DELAY_NS)
    receiver.subscription(granted)
    receiver.arrived(received)
    receiver.subscription(granted)  # all is acknowledged
    wanted = receiver.wanted_limit
    limit = granted + held
    if limit < wanted:
        assert receiver.grant_due(limit, 0) is None
    elif limit == granted:
        assert receiver.grant_due(limit, 0) is None, "there is nothing to grant"
    else:
        assert receiver.grant_due(limit, 0) is not None
