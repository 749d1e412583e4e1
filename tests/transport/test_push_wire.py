"""Push channels carried over a wire: the contract, and what a bad wire may do to them.

The wire here is a list of messages between an outlet and an inlet. The contract holds over a good
one; over one that loses, repeats and reorders, nothing is lost, doubled or torn, as long as what is
lost is sent again.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator

import hypothesis.strategies as st
import pytest
from hypothesis import given

from tests.transport.conformance import ChannelConformance, Ends, Make
from tests.transport.frames import payload, receive, send
from whale_ray.configs.errors import ProtocolError, ResourceError
from whale_ray.transport.channel import Outcome
from whale_ray.transport.links.link import Link, LinkBrokenError, LinkTimes, Role
from whale_ray.transport.links.messages import PUSH, decode, encode
from whale_ray.transport.links.peer import Peer
from whale_ray.transport.push.channel import PushReceivingEnd, attach_push, create_push
from whale_ray.transport.push.layout import PushLayout
from whale_ray.transport.push.tcp import TcpPushReceivingEnd, TcpPushSendingEnd
from whale_ray.transport.push.wire import PushInlet, PushOutlet

SLOT_BYTES = 256
TIMES = LinkTimes(heartbeat_ns=100, silence_ns=1000)
_LABELS = (f"wire{number}" for number in itertools.count())


def carry(outlet: PushOutlet, inlet: PushInlet) -> None:
    """Carry everything, both ways, as a link would."""
    outlet.credited(inlet.credits_in_all)
    while (message := outlet.next_message()) is not None:
        deliver(inlet, *message)
    outlet.credited(inlet.credits_in_all)


def deliver(inlet: PushInlet, word: int, content: bytes | memoryview) -> bool:
    """Bring one message to the inlet; return whether it was wanted."""
    place = inlet.writable(word, len(content))
    if place is None:
        return False
    place[:] = content
    inlet.arrived(word, len(content))
    return True


class GoodWire:
    """Stands for the endpoints of both hosts."""

    outlet: PushOutlet
    inlet: PushInlet

    def push_source(self, host: str, channel: int, outlet: PushOutlet) -> None:
        self.outlet = outlet

    def push_sink(self, host: str, channel: int, inlet: PushInlet) -> None:
        self.inlet = inlet

    def poll(self) -> None:
        carry(self.outlet, self.inlet)


def create(slots: int, **options) -> tuple[PushOutlet, PushReceivingEnd, PushInlet]:
    layout = PushLayout(slots, SLOT_BYTES)
    outlet = PushOutlet.create("wire", next(_LABELS), layout, kind="private")
    receiver, _handle = create_push(
        "wire", next(_LABELS), kind="private", slots=slots, slot_bytes=SLOT_BYTES, **options
    )
    return outlet, receiver, PushInlet(receiver.segment.share())


class TestOverAGoodWire(ChannelConformance):
    memory = "push channel"
    smallest_frame_bytes = SLOT_BYTES

    @pytest.fixture
    def make(self) -> Iterator[Make]:
        with contextlib.ExitStack() as stack:

            def make(ring_bytes: int, receivers: int, **options) -> Ends:
                assert receivers == 1
                both = GoodWire()
                layout = PushLayout(ring_bytes // SLOT_BYTES, SLOT_BYTES)
                sending = TcpPushSendingEnd(both, "b", 1, layout)
                receiving = TcpPushReceivingEnd(both, "a", 1, layout, **options)
                stack.callback(sending.close)
                stack.callback(receiving.close)
                return Ends(sending, [receiving], sending.max_frame_bytes)

            yield make


@pytest.fixture
def wire():
    """Return a function that makes an outlet, its sender, a receiver and its inlet."""
    with contextlib.ExitStack() as stack:

        def make(slots: int = 8):
            outlet, receiver, inlet = create(slots)
            sender = outlet.sending_end()
            for end in (outlet, inlet, receiver, sender):
                stack.callback(end.close)
            return outlet, sender, receiver, inlet

        yield make


@given(data=st.data(), slots=st.integers(2, 9))
def test_a_bad_wire_loses_and_doubles_nothing(data, slots):
    """Every step is one of: send, receive, carry something on, lose something, connect anew."""
    outlet, receiver, inlet = create(slots)
    sender = outlet.sending_end()
    pushes: list[tuple[int, bytes]] = []
    credit_words: list[int] = []
    sent: list[bytes] = []
    received: list[bytes] = []
    steps = st.sampled_from(("send", "post", "push", "lose", "get", "grant", "credit", "anew"))
    for step in data.draw(st.lists(steps, max_size=80)):
        pick = data.draw(st.integers(0, 9))
        if step == "send":
            content = payload(len(sent), pick * 61 % (sender.max_frame_bytes + 1))
            if send(sender, content) is Outcome.SENT:
                sent.append(content)
        elif step == "post" and (message := outlet.next_message()) is not None:
            pushes.append((message[0], bytes(message[1])))
        elif step == "push" and pushes:  # any of them, and it may come again
            deliver(inlet, *pushes[pick % len(pushes)])
        elif step == "lose" and pushes:
            pushes.pop(pick % len(pushes))
        elif step == "get":
            content = receive(receiver)
            received += [] if content is None else [content]
        elif step == "grant":
            credit_words.append(inlet.credits_in_all)
        elif step == "credit" and credit_words:
            outlet.credited(credit_words[pick % len(credit_words)])
        elif step == "anew":
            outlet.reconnected()
        assert received == sent[: len(received)]
    # Over a wire that loses nothing the rest arrives, whatever happened before.
    sender.close()
    while not receiver.closed_by_peer:
        outlet.reconnected()
        carry(outlet, inlet)
        while (content := receive(receiver)) is not None:
            received.append(content)
    assert received == sent
    carry(outlet, inlet)
    assert outlet.delivered and inlet.finished
    for end in (inlet, outlet, receiver):
        end.close()


def test_messages_lie_in_memory_and_are_not_copied(wire):
    outlet, sender, _receiver, inlet = wire()
    send(sender, payload(1, 100))
    word, content = outlet.next_message()
    assert word == 0
    # From byte 64 of the slot, where 100 bytes fit before the footer, up to its last word.
    assert len(content) == 256 - 64 - 8
    assert bytes(content[:100]) == payload(1, 100)
    place = inlet.writable(word, len(content))
    assert len(place) == len(content)
    assert not place.readonly


def test_a_slot_is_free_again_only_after_its_credit(wire):
    outlet, sender, receiver, inlet = wire(slots=2)
    for number in range(2):
        assert send(sender, payload(number, 9)) is Outcome.SENT
    carry(outlet, inlet)
    assert send(sender, b"x") is Outcome.BACK_PRESSURED, "on the other side, but not given back"
    assert receive(receiver) == payload(0, 9)
    assert send(sender, b"x") is Outcome.BACK_PRESSURED, "given back, but not told"
    carry(outlet, inlet)
    assert send(sender, b"x") is Outcome.SENT


def test_a_receiver_that_closes_is_known_to_the_sender(wire):
    outlet, sender, receiver, inlet = wire()
    send(sender, b"x")
    carry(outlet, inlet)
    receiver.close()
    assert send(sender, b"y") is Outcome.SENT
    carry(outlet, inlet)
    assert send(sender, b"z") is Outcome.CLOSED
    assert outlet.delivered
    assert not inlet.finished


def test_an_outlet_that_closes_is_known_to_the_sender(wire):
    outlet, sender, _receiver, _inlet = wire()
    outlet.close()
    assert send(sender, b"z") is Outcome.CLOSED
    assert outlet.next_message() is None
    outlet.credited(0)


def test_an_inlet_that_closes_takes_nothing_more_and_ends_nothing(wire):
    outlet, sender, receiver, inlet = wire()
    send(sender, b"x")
    sender.close()
    inlet.close()
    assert not deliver(inlet, *outlet.next_message())
    assert not receiver.closed_by_peer
    assert inlet.credits_in_all == 0


@pytest.mark.parametrize(
    ("word", "nbytes", "explanation"),
    [
        (8 << 1, 100, "slot use 8 of a push channel came without a credit"),
        (1 << 60, 100, "came without a credit"),
        (0, 23, "23 bytes for a slot of 256 of a push channel, or for its end"),
        (0, 249, "249 bytes for a slot of 256"),
        (1, 2, "2 bytes for a slot of 256"),
        (9 << 1 | 1, 1, "a push channel ends after 9 slot uses, 0 have come"),
    ],
)
def test_invalid_messages_of_the_sender_are_refused(wire, word, nbytes, explanation):
    _outlet, _sender, _receiver, inlet = wire()
    with pytest.raises(ProtocolError, match=explanation):
        inlet.writable(word, nbytes)


def test_a_second_end_and_what_comes_after_one_are_refused(wire):
    outlet, sender, _receiver, inlet = wire()
    send(sender, b"x")
    sender.close()
    carry(outlet, inlet)
    assert inlet.finished
    for word, nbytes in ((1, 1), (2 << 1 | 1, 1), (1 << 1, 60)):
        with pytest.raises(ProtocolError, match="ends after|after the end"):
            inlet.writable(word, nbytes)


def test_content_of_another_slot_use_is_refused(wire):
    outlet, sender, receiver, inlet = wire()
    send(sender, b"x")
    send(sender, b"y")
    _word, content = outlet.next_message()
    with pytest.raises(ProtocolError, match="slot use 1 of push channel .* is another's"):
        deliver(inlet, 1 << 1, content)
    assert receive(receiver) is None


def test_credits_for_what_was_never_sent_are_refused(wire):
    outlet, sender, _receiver, _inlet = wire()
    send(sender, b"x")
    outlet.next_message()
    with pytest.raises(ProtocolError, match="2 slots of a push channel are given back, 1 were"):
        outlet.credited(2 << 1)


def test_an_inlet_is_the_one_sender():
    receiver, handle = create_push("wire", next(_LABELS), slots=4, slot_bytes=SLOT_BYTES)
    inlet = PushInlet.attach(handle)
    for attach in (PushInlet.attach, attach_push):
        with pytest.raises(ResourceError, match="has, or had, another sender"):
            attach(handle)
    inlet.close()
    receiver.close()


def test_a_sender_in_another_process_attaches_to_the_outlet():
    outlet = PushOutlet.create("wire", next(_LABELS), PushLayout(4, SLOT_BYTES))
    sender = attach_push(outlet.handle)
    assert send(sender, b"across") is Outcome.SENT
    _word, content = outlet.next_message()
    assert bytes(content[:6]) == b"across"
    sender.close()
    outlet.close()


def test_push_messages_take_another_link_when_theirs_breaks_and_only_then(wire):
    """Whichever link stood first carries them, also where a later one is for control messages."""
    outlet, sender, receiver, inlet = wire()
    peer = Peer("peer", 1, 8, {})
    peer.push_sources[0] = outlet
    first = Link(peer, Role.CHILD, TIMES, 0)
    assert send(sender, b"one") is Outcome.SENT
    assert len(pushed(first)) == 1, "which is lost"
    second = Link(peer, Role.PARENT, TIMES, 0)
    assert send(sender, b"two") is Outcome.SENT
    assert pushed(second) == []
    assert len(pushed(first)) == 1, "which is lost, too"
    first.ended()
    for word, content in pushed(second):
        deliver(inlet, word, content)
    assert [receive(receiver) for _ in range(3)] == [b"one", b"two", None]
    assert pushed(second) == []


def test_a_link_ends_whose_peer_pushes_by_another(wire):
    """The rest of a payload would come into a slot that may hold another one by then."""
    _, _, _, inlet = wire()
    peer = Peer("peer", 1, 8, {})
    peer.push_sinks[0] = inlet
    first, second = Link(peer, Role.CHILD, TIMES, 0), Link(peer, Role.PARENT, TIMES, 0)
    for link in (first, first, second):
        link.check_silence(0)
        link.begin(encode(PUSH, link._received, 0, 0, 0, SLOT_BYTES // 2))
    with pytest.raises(LinkBrokenError, match="pushes by another link now"):
        first.check_silence(0)
    second.check_silence(0)


def pushed(link: Link) -> list[tuple[int, bytes]]:
    """Return the push messages that a link has to send: their slot words and payloads."""
    buffers: list[memoryview | bytes] = []
    link.outbound(buffers, 1 << 20, 0)
    headers = [(n, one) for n, one in enumerate(buffers) if bytes(one[:4]) == b"WHLK"]
    found = [(n, header) for n, one in headers if (header := decode(one)).kind == PUSH]
    return [(header.position, bytes(buffers[n + 1])) for n, header in found]
