"""The push protocol alone, on a wire that loses, repeats and reorders: numbers, no memory."""

from __future__ import annotations

import random

import hypothesis.strategies as st
import pytest
from hypothesis import given

from whale_ray.configs.errors import ProtocolError
from whale_ray.transport.push.protocol import PushReceiver, PushSender

STEPS = ("send", "post", "push", "push", "lose", "get", "back", "grant", "credit", "anew")


def spend(sender: PushSender, count: int) -> int | None:
    """Write into `count` slots as a sender does; return the first use, None without the credits."""
    if count > sender.credits or sender.closed or sender.peer_closed:
        return None
    first = sender.written
    sender.written += count
    return first


class Wire:
    """A sender and a receiver whose slots hold (use, message, left)."""

    def __init__(self, slots: int) -> None:
        self.sender = PushSender(slots)
        self.receiver = PushReceiver(slots)
        self.near: list = [None] * slots
        self.far: list = [None] * slots
        self.sent = 0
        self.received: list[int] = []
        self.taken: list[range] = []

    def send(self, count: int) -> None:
        first = spend(self.sender, count)
        if first is None:
            assert self.sender.credits < count or self.sender.closed
            return
        for index in range(count):
            use = first + index
            self.near[self.sender.slot(use)] = (use, self.sent, count - 1 - index)
        self.sent += 1

    def post(self):
        word = self.sender.next_word()
        if word is None:
            return None
        content = None if word & 1 else self.near[self.sender.slot(word >> 1)]
        assert content is None or content[0] == word >> 1, "its slot was used anew"
        return word, content

    def push(self, word: int, content) -> None:
        slot = self.receiver.slot_for(word)
        if word & 1:
            self.receiver.arrived(word)
        elif slot is not None:
            assert all(slot not in {use % len(self.far) for use in uses} for uses in self.taken)
            self.far[slot] = content
            self.receiver.arrived(word, content[2])

    def get(self) -> None:
        uses = self.receiver.next_message()
        if uses is not None:
            contents = [self.far[use % len(self.far)] for use in uses]
            assert [content[0] for content in contents] == list(uses)
            assert [content[2] for content in contents] == list(range(len(uses)))[::-1]
            assert {content[1] for content in contents} == {len(self.received)}
            self.received.append(contents[0][1])
            self.taken.append(uses)

    def give_back(self) -> None:
        if self.taken:
            self.receiver.give_back(self.taken.pop(0).stop)

    def finish(self) -> None:
        """Let everything through."""
        self.sender.close()
        while not self.sender.delivered:
            self.sender.reconnected()
            while (message := self.post()) is not None:
                self.push(*message)
            self.get()
            self.give_back()
            self.sender.credited(self.receiver.credit_word)
        assert self.received == list(range(self.sent))
        assert self.receiver.finished
        assert self.sender.returned == self.receiver.returned == self.sender.written


@given(slots=st.integers(2, 9), seed=st.integers(0, 2**32), steps=st.integers(0, 300))
def test_a_bad_wire_loses_and_doubles_nothing(slots, seed, steps):
    chance = random.Random(seed)
    wire = Wire(slots)
    pushes: list = []
    credit_words: list = []
    for _ in range(steps):
        step = chance.choice(STEPS)
        if step == "send":
            wire.send(chance.randint(1, slots // 2))
        elif step == "post" and (message := wire.post()) is not None:
            pushes.append(message)
        elif step == "push" and pushes:
            wire.push(*chance.choice(pushes))
        elif step == "lose" and pushes:
            pushes.pop(chance.randrange(len(pushes)))
        elif step == "get":
            wire.get()
        elif step == "back":
            wire.give_back()
        elif step == "grant":
            credit_words.append(wire.receiver.credit_word)
        elif step == "credit" and credit_words:
            wire.sender.credited(chance.choice(credit_words))
        elif step == "anew" and chance.random() < 0.3:
            wire.sender.reconnected()
        assert 0 <= wire.sender.credits <= slots
        assert wire.receiver.returned <= wire.receiver.received <= wire.sender.written
    wire.finish()


def test_a_sender_stops_without_credits_and_goes_on_with_them():
    sender = PushSender(4)
    assert [spend(sender, 1), spend(sender, 2), spend(sender, 2), spend(sender, 1)] == [
        0,
        1,
        None,
        3,
    ]
    assert sender.credits == 0
    assert [sender.next_word() for _ in range(5)] == [0, 2, 4, 6, None]
    assert sender.credited(3 << 1)
    assert not sender.credited(3 << 1), "known already"
    assert not sender.credited(1 << 1), "older"
    assert (sender.returned, sender.credits) == (3, 3)
    assert spend(sender, 4) is None
    assert spend(sender, 3) == 4


def test_only_what_has_not_come_back_is_sent_again():
    sender = PushSender(4)
    spend(sender, 3)
    sender.close()
    assert [sender.next_word() for _ in range(5)] == [0, 2, 4, 7, None]
    sender.credited(1 << 1)
    assert sender.next_word() is None
    sender.reconnected()
    assert [sender.next_word() for _ in range(4)] == [2, 4, 7, None]
    sender.reconnected()
    sender.credited(2 << 1)
    assert [sender.next_word() for _ in range(3)] == [4, 7, None]
    sender.credited(3 << 1 | 1)
    assert sender.delivered
    sender.reconnected()
    assert sender.next_word() is None


def test_what_arrives_out_of_order_waits_for_the_gap():
    receiver = PushReceiver(4)
    for use in (1, 2):
        assert receiver.slot_for(use << 1) == use
        receiver.arrived(use << 1)
    assert (receiver.received, receiver.next_message()) == (0, None)
    assert receiver.slot_for(2 << 1) is None
    assert receiver.repeated == 1
    receiver.slot_for(0)
    receiver.arrived(0, left=2)
    assert receiver.received == 3
    assert receiver.next_message() == range(3)
    assert receiver.slot_for(1 << 1) is None
    assert receiver.repeated == 2
    assert receiver.credit_word == 0
    receiver.give_back(3)
    assert receiver.credit_word == 3 << 1
    assert receiver.slot_for(1 << 1) is None, "long gone"
    assert receiver.slot_for(6 << 1) == 2


def test_a_message_is_handed_out_when_all_its_slots_are_there():
    receiver = PushReceiver(4)
    receiver.arrived(0, left=1)
    assert receiver.next_message() is None
    receiver.arrived(1 << 1)
    assert receiver.next_message() == range(2)
    assert receiver.next_message() is None


def test_a_closed_receiver_accepts_nothing_more():
    sender, receiver = PushSender(2), PushReceiver(2)
    spend(sender, 2)
    receiver.close()
    assert receiver.slot_for(sender.next_word()) is None
    assert receiver.repeated == 0
    assert sender.credited(receiver.credit_word)
    assert (sender.next_word(), spend(sender, 1)) == (None, None)
    assert sender.peer_closed and not sender.delivered


@pytest.mark.parametrize("returned", [5, -1, 1 << 60])
def test_credits_for_what_was_not_sent_are_refused(returned):
    sender = PushSender(4)
    spend(sender, 4)
    with pytest.raises(ProtocolError, match="are given back, 4 were used"):
        sender.credited(returned << 1)


def test_invalid_messages_of_a_peer_are_refused():
    receiver = PushReceiver(4)
    with pytest.raises(ProtocolError, match="slot use 4 .* came without a credit"):
        receiver.slot_for(4 << 1)
    receiver.arrived(2 << 1)
    with pytest.raises(ProtocolError, match="ends after 2 slot uses, 3 have come"):
        receiver.arrived(2 << 1 | 1)
    receiver.arrived(3 << 1 | 1)
    with pytest.raises(ProtocolError, match="ends after 4"):
        receiver.slot_for(4 << 1 | 1)
    with pytest.raises(ProtocolError, match="after the end"):
        receiver.slot_for(3 << 1)
    with pytest.raises(ProtocolError, match="1 slots of a push channel are given back, 0 have"):
        receiver.give_back(1)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 1 << 62)), max_size=20))
def test_random_words_do_no_harm(words):
    receiver, sender = PushReceiver(4), PushSender(4)
    spend(sender, 3)
    for is_push, word in words:
        try:
            if is_push:
                slot = receiver.slot_for(word)
                if slot is not None or word & 1:
                    receiver.arrived(word)
            else:
                sender.credited(word)
        except ProtocolError:
            pass
    assert 0 <= receiver.received <= 4
    assert 1 <= sender.credits <= 4
