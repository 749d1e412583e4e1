"""Offers whose children come and go, against a plain model: all bytes in one array."""

from __future__ import annotations

import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.transport.links import payload, private_ring, put
from whale_ray.configs.errors import ProtocolError
from whale_ray.transport.channel import Outcome
from whale_ray.transport.links.attached import Offer
from whale_ray.transport.links.peer import Peer
from whale_ray.transport.mirror import RingTap
from whale_ray.transport.retention import Retention

CAPACITY = 4096
STREAM = 7
TURN = 512
HOSTS = ("one", "two", "three")


class Child:
    """The state of a remote host, and the messages under way to it."""

    def __init__(self, host: str, offers: dict[int, Offer]) -> None:
        self.peer = Peer(host, 1, 4, offers)  # as the parent sees it
        self.received = self.read = self.number = 0
        self.subscribed = False
        self.keeps: int | None = None
        """From where the parent must hold what it has; None while it is not admitted, and while it
        starves and nothing was promised."""
        self.promise = 0
        """Where it was admitted; 0 once it has subscribed from there on."""
        self.starves = False
        self.queued: list[tuple[int, int, tuple[memoryview, ...], int]] = []
        """Given to the link, and maybe not taken by the network yet."""
        self.under_way: list[tuple[int, bytes, int]] = []

    @property
    def limit(self) -> int:
        return self.read + CAPACITY

    def flush(self) -> None:
        """Let the network read the memory of the messages under way."""
        for start, stop, pieces, number in self.queued:
            content = b"".join(pieces)
            assert len(content) == stop - start
            self.under_way.append((start, content, number))
        self.queued.clear()


class ComingAndGoing:
    """A ring of a parent whose children are admitted, dismissed, cut off, and served elsewhere."""

    def __init__(self, chance: random.Random, chunks: tuple[int, int] | None) -> None:
        self.chance = chance
        self.producer = private_ring(CAPACITY)
        self.tap = RingTap.beside(self.producer)
        self.retention = None
        if chunks is not None:
            memory, spilled = (2048 * count for count in chunks)
            self.retention = Retention(memory, spilled, CAPACITY, chunk_bytes=2048)
        self.offers: dict[int, Offer] = {}
        self.offer = self.offers[STREAM] = Offer(
            STREAM, self.tap, dynamic=True, retention=self.retention
        )
        self.all = bytearray()
        self.ends = {0}
        self.made = 0
        self.retains: int | None = None
        self.children = {host: Child(host, self.offers) for host in HOSTS}

    def step(self) -> None:
        """Take one random step."""
        chance, host = self.chance, self.chance.choice(HOSTS)
        steps = {
            lambda: self.produce(chance.choice((0, 50, 100, 500, 1000)), chance.randrange(6)): 8,
            lambda: self.admit(host, chance.randrange(2 * CAPACITY // 64)): 3,
            lambda: self.dismiss(host): 1,
            lambda: self.retain(chance.randrange(2 * CAPACITY // 64)): 2,
            lambda: self.send(host): 10,
            lambda: self.subscribe(host): 6,
            lambda: self.arrive(host): 10,
            lambda: self.consume(host, chance.choice((0.5, 1.0))): 8,
            lambda: self.grant(host): 8,
            lambda: self.be_served_elsewhere(host, chance.choice((0, 64, 640, 2048))): 1,
            lambda: self.cut(host): 1,
            self.be_alone: 1,
        }
        chance.choices(list(steps), list(steps.values()))[0]()
        self.check()

    def end(self) -> None:
        """Every admitted child that subscribes gets the rest."""
        self.retains = None
        self.offer.retain_from(len(self.all))
        for child in self.children.values():
            self.cut(child.peer.host)
            if child.keeps is None or child.received < self.offer.held_from:
                self.dismiss(child.peer.host)
            else:
                self.subscribe(child.peer.host)
        served = [child for child in self.children.values() if child.keeps is not None]
        self.producer.close()
        for _ in range(200):
            for child in served:
                host = child.peer.host
                self.send(host)
                self.arrive(host)
                child.read = child.received
                self.grant(host)
        for child in served:
            assert child.received == len(self.all)
            outgoing = self.offer.outgoing[child.peer.host]
            assert outgoing.end_due == len(self.all)
            outgoing.sender.told_end = True
        assert self.offer.complete
        assert self.tap.released == len(self.all)
        if self.retention is not None:
            assert self.retention.empty
            self.retention.close()

    # --- the parent's side ---------------------------------------------------------------------

    def produce(self, size: int, count: int) -> None:
        for _ in range(count):
            if put(self.producer, payload(self.made, size)) is not Outcome.SENT:
                break
            self.made += 1
            start, stop = len(self.all), self.tap.head
            # Copied before any child can release it, padding included.
            self.all += b"".join(self.tap.pieces(start, stop))
            self.ends.add(stop)
        self.offer.tend()

    def admit(self, host: str, back: int) -> None:
        child = self.children[host]
        if child.starves:
            return
        position = max(0, len(self.all) - 64 * back)
        was, before = child.keeps, self.offer.held_from
        held = self.offer.admit(host, position)
        assert host in self.offer.children
        assert held >= self.offer.held_from
        if was is None or max(position, before) < child.promise:
            child.promise = max(position, before)
        if was is not None:
            if not child.subscribed:
                assert held == min(was, max(position, before)), "what is kept grows, or stays"
            child.keeps = min(was, held)
        elif child.subscribed:
            child.keeps = max(child.peer.outgoing[STREAM].sender.acknowledged, held)
        else:
            assert held >= position
            child.keeps = held
            assert self.offer.position_of(host) == held

    def dismiss(self, host: str) -> None:
        self.offer.dismiss(host)
        assert host not in self.offer.children
        assert host not in self.offer.starved
        self.children[host].keeps = None
        self.children[host].starves = False
        with pytest.raises(KeyError):
            self.offer.position_of(host)

    def retain(self, back: int) -> None:
        position = max(0, len(self.all) - 64 * back, self.retains or 0)
        self.retains = position if position >= self.offer.held_from else None
        self.offer.retain_from(position)

    def send(self, host: str) -> None:
        child = self.children[host]
        child.flush()
        outgoing = self.offer.outgoing.get(host)
        if outgoing is None or not child.subscribed:
            return
        admitted = child.keeps is not None or child.starves
        if admitted and outgoing.sender.sent < self.offer.held_from:
            self.starve(host, outgoing.sender.sent)
            return
        found = outgoing.next_range(TURN)
        if found is not None:
            start, stop = found
            assert child.keeps is not None, "nothing is sent to who was dismissed"
            assert start < stop <= min(start + TURN, len(self.all), child.limit)
            child.queued.append((start, stop, self.offer.pieces(start, stop), outgoing.number))

    def starve(self, host: str, position: int) -> None:
        """Check that a child that wants released bytes is named, and holds only promised bytes."""
        child, outgoing = self.children[host], self.offer.outgoing[host]
        assert outgoing.next_range(TURN) is None
        assert self.offer.starved[host] == position
        child.starves, child.keeps = True, child.promise or None
        if self.chance.random() < 0.5:
            child.subscribed = False
            child.number += 1
            child.peer.left(STREAM)
        if self.chance.random() < 0.5:
            self.dismiss(host)

    # --- the child's side ----------------------------------------------------------------------

    def subscribe(self, host: str) -> None:
        child = self.children[host]
        said = (STREAM, child.received, child.limit, CAPACITY, child.number)
        if child.subscribed:
            return
        admitted = child.keeps is not None or child.starves
        starves = admitted and child.received < self.offer.held_from
        if child.received >= child.promise:
            child.promise = 0
        child.peer.subscribed(*said)
        child.subscribed = True
        if starves:
            self.starve(host, child.received)
            return
        assert host not in self.offer.starved
        child.starves = False
        if admitted:
            child.keeps = child.received

    def arrive(self, host: str) -> None:
        child = self.children[host]
        for start, content, number in child.under_way:
            if number == child.number:
                assert start == child.received, "a gap, or a repetition"
                assert content == self.all[start : start + len(content)]
                child.received += len(content)
        child.under_way.clear()

    def consume(self, host: str, share: float) -> None:
        child = self.children[host]
        child.read += int((child.received - child.read) * share) & -64

    def grant(self, host: str) -> None:
        child = self.children[host]
        if child.subscribed:
            child.peer.granted(STREAM, child.received, child.limit)
            if child.keeps is not None:
                child.keeps = max(child.keeps, child.received)

    def be_served_elsewhere(self, host: str, jump: int) -> None:
        """Leave, to come back later at a further position over the same link."""
        child = self.children[host]
        if child.subscribed:
            child.peer.left(STREAM)
            child.subscribed = False
        child.number += 1
        # No parent begins a frame that does not fit below the limit, so none is left within one.
        whole = max(end for end in self.ends if end <= child.limit)
        child.received = max(child.received, min(child.received + jump, whole))

    def cut(self, host: str) -> None:
        child = self.children[host]
        child.peer.child_disconnected()
        child.queued.clear()
        child.under_way.clear()
        child.subscribed = False

    # --- invariants ----------------------------------------------------------------

    def check(self) -> None:
        """Check that promised bytes are held and unchanged."""
        held_from = self.offer.held_from
        assert held_from in self.ends
        assert self.tap.released in self.ends
        for child in self.children.values():
            assert child.keeps is None or held_from <= child.keeps
        assert self.retains is None or held_from <= self.retains
        head = self.offer.head
        assert head == len(self.all)
        position = held_from
        while position < head:
            stop = min(position + 1000, head)
            assert b"".join(self.offer.pieces(position, stop)) == self.all[position:stop]
            position = stop

    def be_alone(self) -> None:
        """Check that bytes without a reader are released at once."""
        if self.offer.children or self.retains is not None:
            return
        self.offer.retain_from(len(self.all))
        for child in self.children.values():
            self.send(child.peer.host)  # a dismissed child is released once it has everything
        self.offer.tend()
        assert self.offer.held_from == len(self.all)


@example(seed=250_000, chunks=None)  # a child whose mirror is full to the last byte
@example(seed=99, chunks=None)  # one that starves, leaves, and subscribes anew
@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**32 - 1),
    chunks=st.sampled_from([None, (0, 0), (2, 0), (0, 3), (1, 40)]),
)
def test_children_that_come_and_go_get_what_they_were_promised(seed, chunks):
    coming_and_going = ComingAndGoing(random.Random(seed), chunks)
    for _ in range(300):
        coming_and_going.step()
    coming_and_going.end()


def offer_of_frames(count: int, retention: Retention | None = None) -> Offer:
    """Return an offer without children, of a ring with `count` frames of 128 bytes."""
    producer = private_ring(CAPACITY)
    tap = RingTap.beside(producer)
    offer = Offer(STREAM, tap, dynamic=True, retention=retention)
    offer.retain_from(0)
    for number in range(count):
        assert put(producer, payload(number, 100)) is Outcome.SENT
    offer.tend()
    return offer


def test_who_was_sent_what_is_gone_by_now_is_told_so():
    offer = offer_of_frames(10)
    peer = Peer("child", 1, 4, {STREAM: offer})
    offer.admit("child", 0)
    peer.subscribed(STREAM, 0, CAPACITY, CAPACITY)
    outgoing = peer.outgoing[STREAM]
    assert outgoing.next_range(256) == (0, 256)
    offer.dismiss("child")
    offer.retain_from(1280)
    assert offer.held_from == 0, "the network may not have taken it yet"
    assert outgoing.next_range(256) is None
    assert offer.held_from == 1280
    assert offer.admit("child", 0) == 1280
    assert outgoing.next_range(256) is None
    assert offer.starved == {"child": 256}
    offer.retain_from(1 << 30)
    peer.subscribed(STREAM, 1280, 1280 + CAPACITY, CAPACITY)
    assert offer.starved == {}


def test_a_starving_child_blocks_nothing():
    offer = offer_of_frames(10)
    offer.retain_from(640)
    peer = Peer("child", 1, 4, {STREAM: offer})
    offer.admit("child", 640)
    peer.subscribed(STREAM, 640, 640 + CAPACITY, CAPACITY)
    peer.subscribed(STREAM, 0, CAPACITY, CAPACITY)
    assert offer.starved == {"child": 0}
    assert peer.outgoing[STREAM].next_range(256) is None
    offer.retain_from(1280)
    assert offer.held_from == 1280
    offer.dismiss("child")
    assert offer.starved == {}


def test_a_starving_child_keeps_its_promised_bytes():
    offer = offer_of_frames(10)
    offer.retain_from(640)
    peer = Peer("child", 1, 4, {STREAM: offer})
    offer.admit("child", 640)
    peer.subscribed(STREAM, 0, CAPACITY, CAPACITY)
    assert offer.starved == {"child": 0}
    offer.retain_from(1280)
    assert offer.held_from == 640
    peer.subscribed(STREAM, 640, 640 + CAPACITY, CAPACITY)
    assert offer.starved == {}
    assert peer.outgoing[STREAM].next_range(256) == (640, 896)


@pytest.mark.parametrize("is_again", [False, True], ids=["admitted", "admitted again, further on"])
def test_a_subscription_of_a_dead_child_releases_no_promised_bytes(is_again):
    offer = offer_of_frames(10)
    peer = Peer("child", 1, 4, {STREAM: offer})
    offer.admit("child", 0)
    peer.subscribed(STREAM, 0, CAPACITY, CAPACITY)
    offer.dismiss("child")
    assert peer.outgoing[STREAM].next_range(256) is None
    offer.retain_from(640)
    # The process at the other end has died, but its link is not known to have broken yet.
    assert offer.admit("child", 640) == 640
    if is_again:
        offer.admit("child", 896)
    assert peer.outgoing[STREAM].next_range(256) is None
    assert offer.starved == {"child": 0}
    peer.child_disconnected()
    offer.retain_from(1280)
    assert offer.held_from == 640
    offer.readmit("child", 896)
    assert offer.held_from == 896
    peer.subscribed(STREAM, 896, 896 + CAPACITY, CAPACITY)
    assert peer.outgoing[STREAM].next_range(256) == (896, 1152)


def test_a_child_that_subscribes_early_is_served_once_it_is_admitted():
    offer = offer_of_frames(10)
    peer = Peer("child", 1, 4, {STREAM: offer})
    peer.subscribed(STREAM, 192, 192 + CAPACITY, CAPACITY, 5)
    peer.granted(STREAM, 192, 192 + CAPACITY)
    outgoing = peer.outgoing[STREAM]
    assert outgoing.next_range(512) is None
    assert offer.children == ()
    assert offer.admit("child", 128) == 192
    assert outgoing.next_range(512) == (192, 256), "the rest of the frame in which it stands"
    assert outgoing.next_range(512) == (256, 768)
    assert outgoing.number == 5


def test_a_child_that_is_ahead_waits_for_its_new_parent():
    producer = private_ring(CAPACITY)
    offer = Offer(STREAM, RingTap.beside(producer), ["child"], dynamic=True)
    peer = Peer("child", 1, 4, {STREAM: offer})
    peer.subscribed(STREAM, 192, 192 + CAPACITY, CAPACITY)
    outgoing = peer.outgoing[STREAM]
    put(producer, payload(0, 100))
    assert outgoing.next_range(512) is None
    offer.tend()
    assert offer.held_from == 128, "the child has it from elsewhere"
    put(producer, payload(1, 100))
    assert outgoing.next_range(512) == (192, 256)


def test_a_resumed_tap_begins_where_it_was_left_also_for_fixed_children():
    producer = private_ring(CAPACITY)
    for number in range(4):
        put(producer, payload(number, 100))
    RingTap.beside(producer).release(200)
    tap = RingTap(producer.segment.share(), 0, resume=True)
    assert (tap.resumed, tap.released) == (True, 128)
    offer = Offer(STREAM, tap, ["child"])
    peer = Peer("child", 1, 4, {STREAM: offer})
    peer.offered(offer.outgoing["child"])
    with pytest.raises(ProtocolError, match="stream 7 from 64, but only from 128 is held here"):
        peer.subscribed(STREAM, 64, 64 + CAPACITY, CAPACITY)
    peer.subscribed(STREAM, 320, 320 + CAPACITY, CAPACITY)
    assert peer.outgoing[STREAM].next_range(512) == (320, 384)
    assert peer.outgoing[STREAM].next_range(512) == (384, 512)
    peer.child_disconnected()
    with pytest.raises(ProtocolError, match="of which 320 were acknowledged"):
        peer.subscribed(STREAM, 192, 192 + CAPACITY, CAPACITY)


def test_a_child_is_kept_less_for_without_anything_else_given_back():
    """No other child holds bytes behind the new position, either."""
    producer = private_ring(CAPACITY)
    offer = Offer(STREAM, RingTap.beside(producer), dynamic=True)
    offer.admit("one", 0)
    for number in range(8):
        assert put(producer, payload(number, 100)) is Outcome.SENT
    offer.readmit("one", 384)
    assert (offer.position_of("one"), offer.held_from) == (384, 384)
    assert offer.admit("two", 0) == 384
    offer.dismiss("one")
    offer.readmit("two", 640)
    assert offer.held_from == 640 < offer.head
