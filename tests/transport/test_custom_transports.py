"""Custom transports: fan-in, fragments, and their possible errors."""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from tests.transport.frames import payload, receive, receive_all, send
from tests.transport.queue_transport import (
    MAX_FRAME_BYTES,
    QueueReceiver,
    QueueSender,
    connected,
    transport,
)
from tests.transport.unix_transport import context
from whale_ray.configs.errors import (
    HeldViewsError,
    TopologyError,
    TransportError,
    TransportGoneError,
)
from whale_ray.testing import VirtualClock
from whale_ray.transport.channel import Outcome
from whale_ray.transport.custom.receiving import CustomReceivingEnd
from whale_ray.transport.custom.sending import CustomSendingEnd
from whale_ray.transports import Receiver, Sender, Transport

HEADER_BYTES = 32


def test_one_receiver_puts_the_frames_of_many_senders_together():
    """Their fragments mix in one queue that is shorter than most frames."""
    chance = random.Random(5)
    senders, receiver = connected(transport(queue_length=7), 4)
    sizes = [[chance.randrange(1500) for _ in range(60)] for _ in senders]
    left = [list(enumerate(each)) for each in sizes]
    received: list[list[bytes]] = [[] for _ in senders]
    while any(left) or any(sender.waits for sender in senders):
        number = chance.randrange(len(senders))
        sender = senders[number]
        if left[number] and send(sender, payload(*left[number][0])) is Outcome.SENT:
            left[number].pop(0)
            if not left[number]:
                sender.finish()
        sender.pump()
        for _ in range(chance.randrange(3)):
            if (content := receive(receiver)) is not None:
                received[receiver.stream].append(content)
        assert not receiver.closed_by_peer or not any(left)
    while (content := receive(receiver)) is not None:
        received[receiver.stream].append(content)
    assert received == [[payload(i, size) for i, size in enumerate(each)] for each in sizes]
    assert receiver.closed_by_peer
    assert receiver.messages == sum(sender.messages for sender in senders)
    assert receiver.missing({number: s.messages for number, s in enumerate(senders)}) is None
    assert receiver.missing({2: senders[2].messages + 1}) == (
        2,
        senders[2].messages + 1,
        senders[2].messages,
    )


def test_refusing_for_now_is_no_error():
    chance = random.Random(6)

    class Reluctant(QueueSender):
        def put(self, message):
            if chance.random() < 0.5:
                raise BlockingIOError
            super().put(message)

    class Hesitant(QueueReceiver):
        def get(self):
            if chance.random() < 0.5:
                raise BlockingIOError
            return super().get() if chance.random() < 0.5 and self.queue else None

    (sender,), receiver = connected(transport(Reluctant, Hesitant, queue_length=3))
    sent, received = [], []
    while len(received) < 100:
        content = payload(len(sent), len(sent) * 13 % 700)
        if len(sent) < 100 and send(sender, content) is Outcome.SENT:
            sent.append(content)
        sender.pump()
        received += receive_all(receiver)
    assert received == sent


# --- errors of a transport ------------------------------------------------------------


def once(change: Callable[[bytes], list[bytes]], at: int = 1) -> Callable[[], Sender]:
    """Return a maker of senders whose message number `at` is changed."""
    numbers = iter(range(1000))
    return partial(
        QueueSender, lambda message: change(message) if next(numbers) == at else [message]
    )


SENDER = "transport 'queue', sender of 'a' → 'b' from worker 0 to worker 1"
RECEIVER = "transport 'queue', receiver of 'a' → 'b' in worker 1"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            lambda message: [],
            "lost messages from worker 0: number 2 came where 1 was due",
        ),
        (
            lambda message: [message, message],
            "repeated or reordered messages from worker 0: number 1 came where 2 was due",
        ),
        (
            lambda message: [message[:50]],
            "got 50 bytes of a message from worker 0 of 128",
        ),
        (
            lambda message: [message + b"more"],
            "got 132 bytes of a message from worker 0 of 128",
        ),
        (
            lambda message: [b"short"],
            "got 5 bytes that no sender of this job sent",
        ),
        (
            lambda message: [bytes(128)],
            "got 128 bytes that no sender of this job sent",
        ),
        (
            lambda message: [message[:4] + b"\x09" + message[5:]],
            "got a message of stream 9, which goes elsewhere",
        ),
        (
            lambda message: [message[:24] + b"\xff\xff\xff\x7f" + message[28:]],
            "changed a message from worker 0",
        ),
    ],
    ids=["loses", "repeats", "cuts", "adds", "short", "foreign", "misleads", "length"],
)
def test_a_faulty_transport_is_detected(change: Any, told: str):
    (sender,), receiver = connected(transport(once(change)))
    send(sender, payload(0, 400))
    with pytest.raises(TransportError) as caught:
        receive_all(receiver)
    assert str(caught.value) == f"{RECEIVER} {told}"


def test_messages_of_an_earlier_attempt_are_dropped_and_counted():
    plugged = transport()
    (sender,), receiver = connected(plugged)
    later = replace(context(plugged, None), attempt=1)
    again = CustomReceivingEnd(
        plugged, later, {0: (0, None)}, MAX_FRAME_BYTES, clock=VirtualClock()
    )
    queue = again.listen()
    send(sender, b"old")
    queue.extend(receiver._operator.queue)
    assert again.get() is None
    assert again.stale == 1
    assert not queue and not again._operator.out, "and given back"


class BrokenError(Exception):
    pass


def broken(call: str) -> tuple[type[Sender], type[Receiver]]:
    """Return operators of which one raises in a call."""

    def fail(self, *arguments):
        raise BrokenError(call)

    sending = call in ("ready_to_send", "put")
    return (
        type("S", (QueueSender,), {call: fail} if sending else {}),
        type("R", (QueueReceiver,), {} if sending else {call: fail}),
    )


@pytest.mark.parametrize("call", ["ready_to_send", "put", "available", "get", "release_buffer"])
def test_an_operators_error_is_reported_with_traceback_and_name(call: str):
    (sender,), receiver = connected(transport(*broken(call)))

    def send_and_receive():
        send(sender, b"x")
        receive_all(receiver)

    with pytest.raises(TransportError) as caught:
        send_and_receive()
    first, *_, error, last = str(caught.value).splitlines()
    assert first == "Traceback (most recent call last):"
    assert error.endswith(f"BrokenError: {call}")
    assert last == f"in {SENDER if call in ('ready_to_send', 'put') else RECEIVER}"


def test_errors_of_open_and_close_name_the_operator(caplog):
    def refuse(self, *arguments):
        raise ConnectionRefusedError("nobody listens")

    def hesitate(self, *arguments):
        raise BlockingIOError("later")

    def explode(self):
        raise AttributeError("no socket")

    with pytest.raises(TransportGoneError) as caught:
        connected(transport(type("S", (QueueSender,), {"open": refuse})))
    assert str(caught.value) == (
        f"{SENDER}: its other side is gone: ConnectionRefusedError('nobody listens')"
    )
    with pytest.raises(TransportError) as caught:
        connected(transport(receiver=type("R", (QueueReceiver,), {"open": hesitate})))
    assert str(caught.value) == f"{RECEIVER} raised BlockingIOError('later') where it must not"
    (sender,), _ = connected(transport(type("S", (QueueSender,), {"close": refuse})))
    sender.close()
    for wrong in (hesitate, explode):
        (sender,), _ = connected(transport(type("S", (QueueSender,), {"close": wrong})))
        caplog.clear()
        sender.close()
        (record,) = caplog.records
        assert record.levelname == "WARNING"
        assert wrong.__name__ in record.message or "later" in record.message
    assert record.message.endswith(f"AttributeError: no socket\nin {SENDER}")


def test_an_error_of_close_does_not_hide_an_error_of_open(caplog):
    def refuse(self, *arguments):
        raise ConnectionRefusedError("nobody listens")

    def explode(self):
        raise AttributeError("no socket")

    plugged = transport(type("S", (QueueSender,), {"open": refuse, "close": explode}))
    sender = CustomSendingEnd(
        plugged, context(plugged, 0), 0, MAX_FRAME_BYTES, clock=VirtualClock()
    )
    with pytest.raises(TransportGoneError, match="nobody listens"):
        sender.connect(deque())
    sender.close()
    assert "no socket" in caplog.text


@pytest.mark.parametrize(
    ("sender", "receiver", "said"),
    [
        ({"ready_to_send": lambda self: None}, {}, "has ready_to_send() that returns None"),
        ({}, {"available": lambda self: None}, "has available() that returns None"),
        ({}, {"get": lambda self: "text"}, "has get() that returns str: return bytes"),
    ],
)
def test_invalid_answers_are_reported(sender, receiver, said):
    plugged = transport(type("S", (QueueSender,), sender), type("R", (QueueReceiver,), receiver))

    def send_and_receive():
        (sending,), receiving = connected(plugged)
        send(sending, b"x")
        receive_all(receiving)

    with pytest.raises(TransportError) as caught:
        send_and_receive()
    assert said in str(caught.value)


def test_the_time_spent_in_an_operator_is_counted_whatever_it_does():
    clock = VirtualClock()

    def slowly(self, message):
        clock.advance(5_000_000)
        QueueSender.put(self, message)

    def never(self):
        clock.advance(1_000_000)
        raise BlockingIOError

    plugged = transport(
        type("S", (QueueSender,), {"put": slowly}), type("R", (QueueReceiver,), {"get": never})
    )
    (sender,), receiver = connected(plugged, clock=clock)
    clock.advance(70_000_000)
    send(sender, bytes(90))
    assert sender.messages == 1
    assert receiver.get() is None
    assert (sender.busy_ns, receiver.busy_ns) == (5_000_000, 1_000_000)


def test_counters_must_be_a_mapping():
    odd = {"statistics": lambda self: ["sent", 3]}
    (sender,), _ = connected(transport(type("S", (QueueSender,), odd)))
    with pytest.raises(TransportError) as caught:
        sender.operator_statistics()
    assert str(caught.value) == (
        f"{SENDER} has statistics() that return ['sent', 3]: return a mapping"
    )


def test_a_sender_that_has_left_needs_no_room():
    def hang_up(self, buffer):
        raise BrokenPipeError

    (sender,), receiver = connected(
        transport(receiver=type("R", (QueueReceiver,), {"release_buffer": hang_up}))
    )
    send(sender, b"x")
    sender.finish()
    assert receive_all(receiver) == [b"x"]
    assert receiver.closed_by_peer


def test_an_invalid_operator_or_message_is_reported():
    with pytest.raises(TransportError) as caught:
        connected(transport(sender=lambda: 5))
    assert str(caught.value) == f"{SENDER} is 5: derive it from whale.transports.Sender"
    with pytest.raises(TransportError) as caught:
        connected(transport(receiver=lambda: 5))
    assert str(caught.value) == f"{RECEIVER} is 5: derive it from whale.transports.Receiver"
    numbers = type("R", (QueueReceiver,), {"get": lambda self: 5})
    (sender,), receiver = connected(transport(receiver=numbers))
    send(sender, b"x")
    with pytest.raises(TransportError, match=r"get\(\) that returns int: return bytes"):
        receiver.get()


def test_a_sender_whose_other_side_is_gone_is_closed():
    class Dying(QueueSender):
        def put(self, message):
            if len(self.queue) == 2:
                raise ConnectionResetError("hung up")
            super().put(message)

    (sender,), _ = connected(transport(Dying))
    assert send(sender, b"1") is send(sender, b"2") is Outcome.SENT
    assert not sender.closed_by_peer
    send(sender, b"3")
    assert sender.closed_by_peer
    assert send(sender, b"4") is Outcome.CLOSED
    with pytest.raises(TransportGoneError) as caught:
        sender.check_alive()
    assert str(caught.value) == (
        f"{SENDER}: its other side is gone: ConnectionResetError('hung up')"
    )
    sender.finish()
    assert not sender.waits, "nothing more can be sent"


def test_a_receiver_whose_other_side_is_gone_reports_it():
    def hang_up(self):
        raise ConnectionAbortedError("gone")

    _, receiver = connected(transport(receiver=type("R", (QueueReceiver,), {"available": hang_up})))
    with pytest.raises(TransportGoneError, match="its other side is gone: ConnectionAborted"):
        receiver.available()


def test_a_kept_view_blocks_later_messages_until_an_error_is_reported():
    """Also messages that were copied: the operator gets them back in order."""
    (sender,), receiver = connected(transport(queue_length=8))
    send(sender, payload(0, 60))
    frame = receiver.get()
    assert frame is not None
    kept = frame.data
    receiver.release_buffer(frame)
    for number in range(2):
        send(sender, payload(number, 150))
        assert receive(receiver) == payload(number, 150)
    send(sender, b"one too many")
    assert receiver.available()
    with pytest.raises(HeldViewsError, match="640 of the 1,024 bytes of their queue"):
        receiver.get()
    assert kept.tobytes() == payload(0, 60)


def test_the_mutex_keeps_other_threads_out_of_an_operator():
    """Another thread requests metrics while the loop is inside `put`."""

    class Nosy(QueueSender):
        busy = False

        def put(self, message):
            self.busy = True
            asking.start()
            asking.join(timeout=0.05 if mutex else None)
            self.busy = False

        def statistics(self):
            return {"busy": self.busy}

    for mutex in (True, False):
        seen: list[int] = []
        (sender,), _ = connected(transport(Nosy, mutex=mutex))
        asking = threading.Thread(
            target=lambda end, into: into.append(end.operator_statistics()["busy"]),
            args=(sender, seen),
        )
        send(sender, b"x")
        asking.join()
        assert seen == [not mutex]


# --- the arguments of a transport ----------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"message_bytes": 63}, "message_bytes is 63: pass a whole number from 64 to 16,777,216"),
        (
            {"message_bytes": 2**24 + 1},
            "message_bytes is 16777217: pass a whole number from 64 to 16,777,216",
        ),
        ({"queue_length": 1}, "queue_length is 1: pass a whole number from 2 to 65,536"),
        ({"queue_length": 2.5}, "queue_length is 2.5: pass a whole number from 2 to 65,536"),
        ({"queue_length": True}, "queue_length is True: pass a whole number from 2 to 65,536"),
        ({"mutex": 1}, "mutex is 1: pass True or False"),
        (
            {"sender": QueueReceiver},
            "sender is the class QueueReceiver: pass a class derived from whale.transports.Sender",
        ),
        (
            {"receiver": "unix"},
            "receiver is 'unix': pass a class derived from whale.transports.Receiver",
        ),
        (
            {"sender": QueueSender()},
            "sender is an object, but each process needs its own: pass a class derived from"
            " whale.transports.Sender, or a function that makes one",
        ),
        (
            {"receiver": type("Half", (Receiver,), {"open": QueueReceiver.open})},
            "receiver Half does not define available, get, release_buffer",
        ),
    ],
)
def test_mistakes_in_a_transport_are_reported_in_one_line(options: dict[str, Any], told: str):
    with pytest.raises(TopologyError) as caught:
        transport(**options)
    assert str(caught.value) == f"transport 'queue': {told}"


def test_a_transport_has_a_name_and_vegas_defaults():
    with pytest.raises(TopologyError) as caught:
        Transport("", QueueSender, QueueReceiver)
    assert str(caught.value) == "a transport's name is '': pass a text such as 'unix-sockets'"
    plugged = Transport("queue", QueueSender, QueueReceiver)
    assert plugged.describe() == "messages of 65,536 B, queues of 128, mutex"
