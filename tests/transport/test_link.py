"""Links as values: many streams over a connection that is cut, or loses and repeats messages."""

from __future__ import annotations

import random
from collections import deque

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.transport.links import Source, Target
from whale_ray.configs.errors import ProtocolError
from whale_ray.transport.channel import Outcome
from whale_ray.transport.links import link_header
from whale_ray.transport.links.attached import Incoming, Offer
from whale_ray.transport.links.link import Link, LinkBrokenError, LinkTimes, Role
from whale_ray.transport.links.link_header import HEADER_BYTES, encode
from whale_ray.transport.links.peer import EARLY_MAX, Peer

TIMES = LinkTimes(heartbeat_ns=100, silence_ns=1000)
RING_BYTES = 4096
DELAY_NS = 10


class Pair:
    """A parent and a child, and the messages between them."""

    def __init__(self, streams: int, frames: int, chance: random.Random) -> None:
        self.now_ns = 0
        self.offers: dict[int, Offer] = {}
        self.child = Peer("child", 11, 4, self.offers)  # as the parent sees it
        self.parent = Peer("parent", 22, 4, {})
        self.sources, self.targets = [], []
        for stream in range(streams):
            source = Source(frames, lambda _n: chance.randrange(1000), RING_BYTES)
            source.content = lambda n, _stream=stream: b"%d/%d " % (_stream, n) * (n % 90)
            target = Target(RING_BYTES)
            self.sources.append(source)
            self.targets.append(target)
            self.parent.incoming[stream] = Incoming(stream, target.mirror, DELAY_NS)
        self.broken = 0
        self.connect()

    def offer(self) -> None:
        for stream, source in enumerate(self.sources):
            self.offers[stream] = offer = Offer(stream, source.tap, ["child"])
            self.child.offered(offer.outgoing["child"])

    def connect(self) -> None:
        self.links = {
            "parent": Link(self.child, Role.CHILD, TIMES, self.now_ns),
            "child": Link(self.parent, Role.PARENT, TIMES, self.now_ns),
        }
        self.wires: dict[str, deque[bytes]] = {
            "parent": deque(maxlen=1 << 16),
            "child": deque(maxlen=1 << 16),
        }
        """Messages on their way to each."""

    def cut(self, reason: str = "cut") -> None:
        for link in self.links.values():
            link.broken(reason)
        self.broken += 1
        self.connect()

    def send(self, host: str, max_bytes: int = 2048) -> None:
        buffers: list[memoryview | bytes] = []
        self.links[host].outbound(buffers, max_bytes, self.now_ns)
        other = self.wires["child" if host == "parent" else "parent"]
        content = b"".join(buffers)
        while content:
            length = link_header.decode(content).length
            other.append(content[: HEADER_BYTES + length])
            content = content[HEADER_BYTES + length :]

    def receive(self, host: str) -> None:
        if not self.wires[host]:
            return
        message = self.wires[host].popleft()
        link = self.links[host]
        link.heard(self.now_ns)
        length, places = link.begin(message[:HEADER_BYTES])
        content = message[HEADER_BYTES:]
        assert sum(len(place) for place in places) == length == len(content)
        for place in places:
            place[:], content = content[: len(place)], content[len(place) :]
        if length:
            link.end()
        for incoming in self.parent.changed.values():
            incoming.publish()
        self.parent.changed.clear()

    def run_to_the_end(self) -> None:
        for _ in range(10_000):
            self.now_ns += DELAY_NS
            for source, target in zip(self.sources, self.targets, strict=True):
                source.step()
                target.step()
            for host in ("parent", "child"):
                self.send(host)
                while self.wires[host]:
                    self.receive(host)
            if all(target.over for target in self.targets) and all(
                offer.complete for offer in self.offers.values()
            ):
                return
        pytest.fail("it does not come to an end")


@given(st.integers(0, 2**32 - 1))
@example(2_382_286_353)  # the last message on its way is lost, so nothing shows that
def test_any_faults_of_the_wire_lose_and_double_nothing(seed):
    chance = random.Random(seed)
    pair = Pair(3, 60, chance)
    offered = lost = False
    for _ in range(400):
        pair.now_ns += chance.choice([0, DELAY_NS, 50])
        host = chance.choice(["parent", "child"])
        what = chance.random()
        if what < 0.02 and not offered:
            pair.offer()
            offered = True
        elif what < 0.03:
            pair.cut()
        elif what < 0.05 and pair.wires[host]:
            pair.wires[host].rotate(chance.randrange(3))
        elif what < 0.06 and pair.wires[host]:
            pair.wires[host].append(pair.wires[host][0])
        elif what < 0.07 and pair.wires[host]:
            pair.wires[host].popleft()
            lost = True
        elif what < 0.5:
            pair.send(host)
        else:
            chance.choice(pair.sources).step()
            chance.choice(pair.targets).step()
            try:
                pair.receive(host)
            except LinkBrokenError as error:
                pair.cut(error.reason)
    if not offered:
        pair.offer()
    if pair.wires["parent"] or pair.wires["child"] or lost:
        pair.cut()
    pair.run_to_the_end()
    assert set(pair.parent.counters.failures) <= {"cut", "lost or repeated message"}
    for source, target in zip(pair.sources, pair.targets, strict=True):
        assert target.received == [source.content(number) for number in range(60)]


def test_streams_take_turns_and_one_without_room_is_passed_over():
    pair = Pair(3, 150, random.Random(1))
    pair.offer()
    for _ in range(300):
        for source in pair.sources:
            source.step()
        for target in pair.targets[1:]:  # nobody reads the first
            target.step()
        pair.now_ns += DELAY_NS
        for host in ("parent", "child"):
            pair.send(host)
            while pair.wires[host]:
                pair.receive(host)
    assert pair.targets[0].mirror.received <= RING_BYTES
    assert not pair.targets[0].over
    assert pair.targets[1].over
    assert pair.targets[2].over
    assert pair.offers[0].outgoing["child"].back_pressured > 0
    pair.run_to_the_end()


def test_silence_breaks_and_heartbeats_prevent_it():
    pair = Pair(0, 0, random.Random(1))
    for _ in range(50):
        pair.now_ns += TIMES.heartbeat_ns
        for host, link in pair.links.items():
            assert link.next_due_ns <= pair.now_ns
            pair.send(host)
            link.check_silence(pair.now_ns)
            while pair.wires[host]:
                pair.receive(host)
    pair.links["child"].check_silence(pair.now_ns + TIMES.silence_ns - 1)
    with pytest.raises(LinkBrokenError, match="'parent' has been silent") as caught:
        pair.links["child"].check_silence(pair.now_ns + 2 * TIMES.silence_ns)
    assert caught.value.reason == "silent"


def test_a_lost_last_message_shows_at_the_next_heartbeat():
    pair = Pair(1, 1, random.Random(1))
    pair.offer()
    pair.sources[0].step()
    for _ in range(3):
        for host in ("child", "parent"):
            pair.send(host)
        while pair.wires["parent"]:
            pair.receive("parent")
    pair.wires["child"].clear()  # all of it
    pair.now_ns += TIMES.heartbeat_ns
    pair.send("parent")
    with pytest.raises(LinkBrokenError, match="sent message .* where 0 is due"):
        pair.receive("child")


def test_the_time_there_and_back_is_measured():
    pair = Pair(0, 0, random.Random(1))
    pair.send("child")
    pair.now_ns += 30
    pair.receive("parent")
    pair.send("parent")
    pair.now_ns += 12
    while pair.wires["child"]:
        pair.receive("child")
    assert pair.parent.counters.rtt_ns == 42


def test_control_messages_pass_and_wait_until_they_are_taken():
    pair = Pair(0, 0, random.Random(1))
    sent = 0
    for _ in range(10):
        sent += pair.parent.outbox.put(b"to the parent %d" % sent) is Outcome.SENT
        for host in ("child", "parent"):
            pair.send(host)
            while pair.wires[host]:
                pair.receive(host)
    assert sent == 4
    taken = [pair.child.inbox.take() for _ in range(5)]
    assert taken == [b"to the parent %d" % number for number in range(4)] + [None]
    pair.send("parent")
    pair.receive("child")
    assert pair.parent.outbox.empty


@pytest.mark.parametrize(
    ("host", "message", "why"),
    [
        ("parent", encode(link_header.DATA, 0, 0, 0, 0, 64), "'child', a child, sent data for 0"),
        ("child", encode(link_header.DATA, 0, 9, 0, 0, 64), "'parent', a parent, sent data for 9"),
        ("child", encode(link_header.SUBSCRIBE, 0, 0), "a parent, sent subscribe for 0"),
        ("child", encode(link_header.GRANT, 0, 0), "a parent, sent grant for 0"),
        ("parent", encode(link_header.FINISHED, 0, 0), "a child, sent finished for 0"),
        ("child", encode(link_header.FINISHED, 0, 9), "a parent, sent finished for 9"),
        ("child", encode(link_header.GOODBYE, 0, 0), "a parent, sent goodbye for 0"),
        (
            "child",
            encode(link_header.GOODBYE, 0, link_header.NO_STREAM),
            "closed the link on purpose",
        ),
        ("parent", encode(link_header.GRANT, 0, 9), "grants stream 9, which it has not subscribed"),
        (
            "parent",
            encode(link_header.SUBSCRIBE, 0, 0, 0, 64, detail=13),
            "mirror .* has 8,192 bytes",
        ),
        ("parent", encode(link_header.GRANT, 0, 0), "that was not subscribed on this link"),
        ("child", encode(link_header.HEARTBEAT, 0, 22, 0, 3), "3 control messages acknowledged"),
        ("child", encode(link_header.HEARTBEAT, 5), "sent message 5 where 0 is due"),
        ("child", encode(link_header.DATA, 0, 0, 64, 0, 64), "but 0 is next: some is lost"),
        ("child", encode(link_header.DATA, 0, 0, 0, 0, 8192), "but only 0 was granted"),
    ],
)
def test_what_a_link_refuses(host, message, why):
    pair = Pair(1, 1, random.Random(1))
    pair.offer()
    with pytest.raises(ProtocolError, match=why):
        pair.links[host].begin(message)


def test_subscriptions_of_nothing_are_bounded():
    pair = Pair(0, 0, random.Random(1))
    link = pair.links["parent"]
    for number in range(EARLY_MAX):
        link.begin(encode(link_header.SUBSCRIBE, number, number, 0, 64, detail=12))
    with pytest.raises(ProtocolError, match="too many streams that nobody offers"):
        link.begin(encode(link_header.SUBSCRIBE, EARLY_MAX, EARLY_MAX, 0, 64, detail=12))


def test_a_stream_is_served_to_its_children_alone():
    pair = Pair(1, 1, random.Random(1))
    pair.offers[0] = Offer(0, pair.sources[0].tap, ["somebody else"])
    with pytest.raises(ProtocolError, match="'child' is no child of stream 0"):
        pair.links["parent"].begin(encode(link_header.SUBSCRIBE, 0, 0, 0, 64, detail=12))


def test_bytes_that_hold_no_frames_break_the_link_and_are_asked_for_again():
    pair = Pair(1, 1, random.Random(1))
    pair.send("child")  # its message grants the parent room
    header = encode(link_header.DATA, 0, 0, 0, 0, 64)
    _, (place,) = pair.links["child"].begin(header)
    place[:] = b"\xff" * 64
    with pytest.raises(ProtocolError, match="hold no frames"):
        pair.links["child"].end()
    pair.cut("protocol")
    pair.offer()
    pair.run_to_the_end()
    assert pair.parent.counters.failures == {"protocol": 1}


def test_a_stream_that_ends_within_a_frame_is_refused():
    pair = Pair(1, 1, random.Random(1))
    pair.send("child")
    link = pair.links["child"]
    _, (place,) = link.begin(encode(link_header.DATA, 0, 0, 0, 0, 64))
    place[:8] = (500).to_bytes(8, "little")
    link.end()
    with pytest.raises(ProtocolError, match="stream 0 ends at 64, within a frame"):
        link.begin(encode(link_header.FINISHED, 1, 0, 64))


def test_a_child_whose_readers_have_gone_leaves_on_every_link():
    pair = Pair(2, 1000, random.Random(1))
    pair.offer()
    pair.targets[0].consumer.close()
    for _ in range(3):
        for host in ("child", "parent"):
            pair.send(host)
            while pair.wires[host]:
                pair.receive(host)
        pair.sources[0].step()
    assert pair.offers[0].outgoing["child"].gone
    assert pair.sources[0].tap.closed
    assert pair.sources[0].producer.closed_by_peer
    pair.cut()
    pair.send("child")
    kinds = [link_header.decode(message).kind for message in pair.wires["parent"]]
    assert kinds.count(link_header.GOODBYE) == kinds.count(link_header.SUBSCRIBE) == 1
    while pair.wires["parent"]:
        pair.receive("parent")
    assert pair.parent.incoming[0].complete


def test_a_stream_that_moves_between_two_peers_alone():
    """Without endpoints, driven as by a simulator; messages of the former parent are stale."""
    pair, other = Pair(1, 20, random.Random(1)), Peer("other", 33, 4, {})
    pair.offer()
    for _ in range(3):
        pair.sources[0].step()
        for host in ("child", "parent"):
            pair.send(host)
        while pair.wires["parent"]:
            pair.receive("parent")
    while link_header.decode(pair.wires["child"][0]).kind != link_header.DATA:
        pair.receive("child")
    # In the middle of a message: the first line has come.
    message = pair.wires["child"].popleft()
    link = pair.links["child"]
    length, (place, *_) = link.begin(message[:HEADER_BYTES])
    place[:64] = message[HEADER_BYTES : HEADER_BYTES + 64]
    link.progress(64)
    assert link.divert(9, length - 64) is None, "another stream's"
    waste = link.divert(0, length - 64)
    assert sum(map(len, waste)) == length - 64
    incoming = pair.parent.release_stream(0)
    assert (incoming.received, incoming.parent) == (64, None)
    other.take_over(incoming)
    with pytest.raises(ValueError, match="stream 0 is read from 'other'"):
        pair.parent.take_over(incoming)
    link.end()
    assert incoming.received == 64
    late = len(pair.wires["child"])
    while pair.wires["child"]:
        pair.receive("child")
    assert pair.parent.counters.stale == 1 + late > 1
    assert incoming.received == 64
    link.begin(encode(link_header.FINISHED, link._received, 0, 1 << 20))
    assert incoming.finished_at is None
    # The new parent is asked for the rest, the former one is notified.
    buffers: list[memoryview | bytes] = []
    Link(other, Role.PARENT, TIMES, 0).outbound(buffers, 1 << 20, 0)
    header = link_header.decode(buffers[0])
    assert (header.kind, header.position, header.detail >> 5) == (link_header.SUBSCRIBE, 64, 1)
    pair.send("child")
    sent = [link_header.decode(one) for one in pair.wires["parent"]]
    assert [one.stream for one in sent if one.kind == link_header.GOODBYE] == [0]
    # And back: over the same link, with another number.
    pair.parent.take_over(other.release_stream(0))
    pair.send("child")
    header = link_header.decode(pair.wires["parent"][-1])
    assert (header.kind, header.position, header.detail >> 5) == (link_header.SUBSCRIBE, 64, 2)


def test_control_messages_take_another_link_when_theirs_breaks():
    peer = Peer("peer", 1, 8, {})
    first, second = (Link(peer, role, TIMES, 0, primary=role is Role.PARENT) for role in Role)
    for number in range(3):
        peer.outbox.put(b"%d" % number)

    def said(link: Link) -> int:
        buffers: list[memoryview | bytes] = []
        link.outbound(buffers, 1 << 20, 0)
        return sum(len(one) == 1 for one in buffers)

    assert (said(second), said(first)) == (0, 3)
    first.ended()
    assert said(second) == 3, "all again that may not have arrived"
    assert said(second) == 0
