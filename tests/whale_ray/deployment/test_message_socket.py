"""Messages between a driver and its members, whether the other side takes them or not."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whale_ray.deployment.processes.message_socket import MessageSocket, PatientSocket

LARGE = random.Random(1).randbytes(3_000_000)


@pytest.fixture
def ends() -> Iterator[tuple[PatientSocket, MessageSocket]]:
    ours, theirs = socket.socketpair()
    patient, waiting = PatientSocket(ours), MessageSocket(theirs)
    yield patient, waiting
    patient.close()
    waiting.close()


def test_what_the_other_side_does_not_take_waits_and_arrives_in_order(ends):
    patient, waiting = ends
    messages = [b"", b"first", LARGE, b"behind it", LARGE[:70_000]]
    for message in messages:
        patient.send(message)
    assert patient.has_unsent, "the peer has not read"
    taken: list[bytes] = []
    reader = threading.Thread(target=lambda: taken.extend(waiting.receive() for _ in messages))
    reader.start()
    while patient.has_unsent:
        patient.flush()
    reader.join()
    assert taken == messages


def test_a_message_that_comes_in_parts_blocks_no_reader():
    ours, theirs = socket.socketpair()
    patient = PatientSocket(ours)
    wire = (5).to_bytes(8, "little") + b"hello" + (0).to_bytes(8, "little")
    found = []
    for byte in wire:
        assert patient.receive() is None
        theirs.send(bytes([byte]))
        message = patient.receive()
        if message is not None:
            found.append(bytes(message))
    assert found == [b"hello", b""]
    theirs.close()
    with pytest.raises(EOFError):
        patient.receive()
    patient.close()


@given(st.lists(st.binary(max_size=300), max_size=20), st.lists(st.booleans(), max_size=60))
def test_messages_are_whole_whichever_side_turns(messages, turns):
    ours, theirs = socket.socketpair()
    sender, receiver = PatientSocket(ours), PatientSocket(theirs)
    rest, found = list(messages), []
    for sends in [*turns, *[True] * len(messages)]:
        if sends and rest:
            sender.send(rest.pop(0))
        elif (message := receiver.receive()) is not None:
            found.append(bytes(message))
    while (message := receiver.receive()) is not None:
        found.append(bytes(message))
    assert found == messages
    sender.close()
    receiver.close()


def test_to_a_side_that_is_gone_nothing_is_sent(ends):
    patient, waiting = ends
    patient.send(LARGE)
    waiting.close()
    patient.flush()
    assert not patient.has_unsent
    patient.send(b"more")
    assert not patient.has_unsent
    with pytest.raises((EOFError, OSError)):
        patient.receive()


def test_closing_ends_the_wait_of_another_thread(ends):
    patient, waiting = ends
    errors: list[BaseException] = []

    def receive() -> None:
        try:
            waiting.receive()
        except (EOFError, OSError) as error:
            errors.append(error)

    reader = threading.Thread(target=receive)
    reader.start()
    waiting.close()
    reader.join()
    assert errors
    with pytest.raises(EOFError):
        patient.receive()
