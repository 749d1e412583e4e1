"""Control messages: once, in order, whatever happens to the links."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whale_ray.configs.errors import ProtocolError
from whale_ray.transport.channel import Outcome
from whale_ray.transport.links.control import ControlInbox, ControlMessage, ControlOutbox
from whale_ray.transport.links.link_header import CONTROL_BYTES_MAX

MARK, MAX = 77, 4


@given(
    st.lists(
        st.sampled_from(["put", "send", "receive", "take", "acknowledge", "cut"]), max_size=200
    )
)
def test_any_sequence_of_events_delivers_each_message_once_in_order(story):
    outbox, inbox = ControlOutbox(MARK, MAX), ControlInbox(MAX)
    wire: list[ControlMessage] = []
    put: list[bytes] = []
    taken: list[bytes] = []

    def step(what: str) -> None:
        if what == "put":
            content = b"message %d" % len(put)
            if outbox.put(content) is Outcome.SENT:
                put.append(content)
        elif what == "send":
            message = outbox.next_message()
            wire.extend([] if message is None else [message])
        elif what == "receive" and wire:
            inbox.arrived(MARK, wire.pop(0))
        elif what == "take":
            content = inbox.take()
            taken.extend([] if content is None else [content])
        elif what == "acknowledge":
            outbox.acknowledged(inbox.mark, inbox.taken)
        elif what == "cut":
            wire.clear()
            outbox.reconnected()

    for what in story:
        step(what)
        assert taken == put[: len(taken)]
        assert len(put) - len(taken) <= 2 * MAX, "bounded"
    step("cut")
    for _ in range(2 * MAX):
        for what in ("send", "receive", "take", "acknowledge"):
            step(what)
    assert taken == put
    assert outbox.empty


def test_limits():
    outbox = ControlOutbox(MARK, MAX)
    assert outbox.put(bytes(CONTROL_BYTES_MAX + 1)) is Outcome.TOO_LARGE
    with pytest.raises(ValueError, match="says nothing"):
        outbox.put(b"")
    assert [outbox.put(b"x") for _ in range(MAX + 1)] == [Outcome.SENT] * MAX + [
        Outcome.BACK_PRESSURED
    ]


def test_a_successor_of_either_side_is_understood():
    inbox = ControlInbox(MAX)
    inbox.arrived(1, ControlMessage(0, b"old"))
    inbox.arrived(2, ControlMessage(0, b"of the successor"))
    assert (inbox.take(), inbox.mark, inbox.taken) == (b"old", 2, 0)
    assert (inbox.take(), inbox.taken) == (b"of the successor", 1)
    late = ControlInbox(MAX)
    assert late.arrived(MARK, ControlMessage(1000, b"the first that is left"))
    assert late.taken == 1000
    outbox = ControlOutbox(MARK, MAX)
    outbox.put(b"x")
    outbox.acknowledged(MARK + 1, 12)
    assert not outbox.empty, "that counts another sender's"


def test_invalid_messages_are_refused():
    inbox = ControlInbox(MAX)
    inbox.arrived(MARK, ControlMessage(0, b"x"))
    assert not inbox.arrived(MARK, ControlMessage(0, b"x"))
    with pytest.raises(ProtocolError, match="control message 2 where 1 is due"):
        inbox.arrived(MARK, ControlMessage(2, b"x"))
    for number in range(1, MAX):
        inbox.arrived(MARK, ControlMessage(number, b"x"))
    with pytest.raises(ProtocolError, match="more than 4 control messages wait"):
        inbox.arrived(MARK, ControlMessage(MAX, b"x"))
    outbox = ControlOutbox(MARK, MAX)
    outbox.put(b"x")
    with pytest.raises(ProtocolError, match="1 control messages acknowledged, 0 are due"):
        outbox.acknowledged(MARK, 1)


def test_the_count_may_wrap():
    outbox, inbox = ControlOutbox(MARK, MAX), ControlInbox(MAX)
    outbox._first = outbox._next = outbox._furthest = (1 << 32) - 2
    for number in range(6):
        outbox.put(b"%d" % number)
        message = outbox.next_message()
        assert message is not None
        inbox.arrived(MARK, message)
        assert inbox.take() == b"%d" % number
        outbox.acknowledged(MARK, inbox.taken & 0xFFFFFFFF)
        assert outbox.empty
