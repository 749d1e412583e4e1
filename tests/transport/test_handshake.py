"""The handshake: golden bytes made by hand, every refusal by name, and attackers of many kinds.

Whatever an attacker does, a side that has completed the handshake must have talked, bit by bit, to
a live side that holds the same secret.
"""

from __future__ import annotations

import hashlib
import hmac
import pickle
import random
from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import given

from whale_ray.transport.links.handshake import (
    HELLO_BYTES,
    NAME_BYTES_MAX,
    PROOF_BYTES,
    HandshakeRefusedError,
    Identity,
    Initiator,
    Refusal,
    Responder,
)

SECRET = bytes(range(32))
ROOT = Identity("ride-1a2b", 3, 7, "host-0")
CHILD = Identity("ride-1a2b", 3, 7, "host-1")
NONCE_I = b"i" * 32
NONCE_R = b"r" * 32


def initiator(**changes) -> Initiator:
    options = {"identity": CHILD, "secret": SECRET, "nonce": NONCE_I, "expects": "host-0"}
    return Initiator(**options | changes)


def responder(**changes) -> Responder:
    return Responder(**{"identity": ROOT, "secret": SECRET, "nonce": NONCE_R} | changes)


def converse(dialler: Initiator, listener: Responder) -> list[bytes]:
    """Exchange messages until there is no answer; return them all."""
    messages = [dialler.hello]
    sides = [listener, dialler]
    while messages[-1]:
        messages.append(sides[0].receive(messages[-1]))
        sides.reverse()
    return messages[:-1]


def feed(side: Initiator | Responder, *chunks: bytes) -> HandshakeRefusedError | None:
    """Feed a side the bytes of each chunk that it needs; return its refusal, if any."""
    for chunk in chunks:
        try:
            side.receive(chunk[: side.needs])
        except HandshakeRefusedError as refused:
            return refused
    return None


def refusal(
    dialler: Initiator, listener: Responder
) -> tuple[HandshakeRefusedError, HandshakeRefusedError]:
    """Return the first refusal, and the other side's end, with or without being notified."""
    message, at, other = dialler.hello, listener, dialler
    with pytest.raises(HandshakeRefusedError) as first:  # noqa: PT012 - who refuses is not known
        while True:
            message, at, other = at.receive(message), other, at
    told = feed(other, first.value.farewell)
    if told is None:
        with pytest.raises(HandshakeRefusedError) as ended:
            other.ended()
        told = ended.value
    assert not dialler.done
    assert not listener.done
    assert dialler.needs == listener.needs == 0
    return first.value, told


# --- the messages ---------------------------------------------------------------------------


def golden() -> list[bytes]:
    """Return the conversation of CHILD and ROOT, written down by hand."""

    def name(text: bytes) -> bytes:
        return bytes([len(text)]) + text + bytes(63 - len(text))

    def signed(label: bytes, before: bytes, content: bytes) -> bytes:
        tag = hmac.new(SECRET, b"whale-ray handshake " + label + before + content, hashlib.sha256)
        return content + tag.digest()

    numbers = (3).to_bytes(8, "little") + (7).to_bytes(8, "little")
    begin = b"WHALEHS\0\x01\0"
    said = signed(
        b"1: initiator's hello",
        b"",
        begin + b"\1\0\0\0\0\0" + numbers + NONCE_I + name(b"ride-1a2b") + name(b"host-1"),
    )
    messages = [said]
    answer = begin + b"\2\0\0\0\0\0" + numbers + NONCE_R + name(b"ride-1a2b") + name(b"host-0")
    for label, content in (
        (b"2: responder's challenge", answer),
        (b"3: initiator's proof", begin + b"\3\0\0\0\0\0"),
        (b"4: responder's verdict", begin + b"\4\0\0\0\0\0"),
    ):
        messages.append(signed(label, said, content))
        said += messages[-1]
    return messages


def test_golden_bytes():
    dialler, listener = initiator(), responder()
    messages = converse(dialler, listener)
    assert [len(message) for message in messages] == [224, 224, 48, 48]
    assert messages == golden()
    digest = hashlib.sha256(b"".join(messages)).hexdigest()
    assert digest == "6be15ee237a876486c2db570dc9f4db9ef3ba80a50c5b9a175a948d09e1b8c80"


def test_both_know_each_other_at_the_end():
    dialler, listener = initiator(), responder()
    with pytest.raises(RuntimeError, match="not known before the handshake is done"):
        _ = dialler.peer
    converse(dialler, listener)
    assert dialler.done and listener.done
    assert (dialler.peer, listener.peer) == (ROOT, CHILD)
    assert dialler.needs == listener.needs == 0


def test_the_longest_names_fit():
    job = "ü" * 31 + "j"
    child = Identity(job, 2**64 - 1, 0, "x" * NAME_BYTES_MAX)
    dialler = initiator(identity=child, expects="")
    listener = responder(identity=replace(child, host="y"))
    converse(dialler, listener)
    assert listener.peer == child


@given(st.lists(st.integers(1, 60), max_size=40))
def test_messages_may_be_split_at_any_byte(sizes):
    dialler, listener = initiator(), responder()
    message, at, other = dialler.hello, listener, dialler
    pieces = iter(sizes)
    while message:
        answer = b""
        while message:
            assert not answer
            needed = at.needs
            piece = message[: next(pieces, 1)]
            answer = at.receive(bytearray(piece))
            message = message[len(piece) :]
            assert at.needs == needed - len(piece) or not message
        message, at, other = answer, other, at
    assert dialler.done and listener.done


def test_more_bytes_than_needed_are_the_callers_mistake():
    listener = responder()
    assert listener.needs == HELLO_BYTES
    with pytest.raises(ValueError, match="225 bytes of a handshake that needs 224"):
        listener.receive(bytes(225))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Identity("", 0, 0, "h"), "job name '': it must take 1 to 63 bytes"),
        (lambda: Identity("j", 0, 0, "h" * 64), "host name 'h{64}': it must take 1 to 63 bytes"),
        (lambda: Identity("j", -1, 0, "h"), r"attempt -1: it must lie between 0 and 2\*\*64 - 1"),
        (lambda: Identity("j", 0, 2**64, "h"), "term 18446744073709551616: it must lie between"),
        (lambda: initiator(secret=b"short"), "a secret of 5 bytes: it must have 16 at least"),
        (lambda: responder(nonce=b""), "a nonce of 0 bytes: it must have 32"),
    ],
)
def test_impossible_arguments_are_refused_at_once(make, message):
    with pytest.raises(ValueError, match=message):
        make()


# --- refusals by name -----------------------------------------------------------------------


def test_a_wrong_secret_gets_not_a_byte():
    error, told = refusal(initiator(secret=b"w" * 32), responder())
    assert (error.reason, error.farewell) == (Refusal.WRONG_SECRET, b"")
    assert str(error) == (
        "handshake refused: the peer does not know this job's secret, or its message was altered"
    )
    assert told.reason is Refusal.TRUNCATED
    assert str(told) == (
        "handshake refused: the peer closed the connection within the handshake, 224 bytes before "
        "the end of its message: its secret or version may be another, or it is full"
    )


@pytest.mark.parametrize(
    ("dialler", "reason", "explanation"),
    [
        ({"identity": replace(CHILD, job="other-3c4d")}, "OTHER_JOB", "is of job 'ride-1a2b'"),
        ({"expects": "host-9"}, "OTHER_HOST", "host 'host-9' was dialled, 'host-0' answered"),
        ({"identity": replace(CHILD, attempt=4)}, "OLDER_ATTEMPT", "is at attempt 3, this is 4"),
        ({"identity": replace(CHILD, term=8)}, "OLDER_TERM", "is at term 7, this is 8"),
        ({"accept": lambda _: "not my parent"}, "NOT_ACCEPTED", "host 'host-0': not my parent"),
        ({"identity": ROOT}, "REFLECTED", "the peer is this host, 'host-0', itself"),
        ({"nonce": NONCE_R}, "REFLECTED", "itself"),
    ],
)
def test_the_initiator_refuses_and_says_why(dialler, reason, explanation):
    error, told = refusal(initiator(**dialler), responder())
    assert error.reason is told.reason is Refusal[reason]
    assert explanation in str(error)
    assert len(error.farewell) == PROOF_BYTES
    assert str(told) == f"handshake refused: it refused: {Refusal[reason].words}"
    assert told.farewell == b""


@pytest.mark.parametrize(
    ("listener", "reason", "explanation"),
    [
        ({"identity": replace(ROOT, attempt=4)}, "OLDER_ATTEMPT", "'host-1' is at attempt 3"),
        ({"identity": replace(ROOT, term=8)}, "OLDER_TERM", "'host-1' is at term 7, this is 8"),
        ({"accept": lambda peer: f"no child: {peer.host}"}, "NOT_ACCEPTED", "no child: host-1"),
    ],
)
def test_the_responder_refuses_and_says_why(listener, reason, explanation):
    error, told = refusal(initiator(), responder(**listener))
    assert error.reason is told.reason is Refusal[reason]
    assert explanation in str(error)
    assert str(told) == f"handshake refused: it refused: {Refusal[reason].words}"


def test_a_peer_with_an_authentic_hello_is_introduced():
    dialler, listener = initiator(), responder()
    assert not listener.introduced
    listener.receive(dialler.hello[:-1])
    assert not listener.introduced
    challenge = listener.receive(dialler.hello[-1:])
    assert listener.introduced
    assert not dialler.introduced
    dialler.receive(challenge)
    assert dialler.introduced
    impostor = responder(secret=b"x" * 32)
    with pytest.raises(HandshakeRefusedError):
        impostor.receive(dialler.hello)
    assert not impostor.introduced


def test_accept_sees_only_the_authenticated():
    seen = []
    listener = responder(accept=seen.append)
    messages = golden()
    listener.receive(messages[0])
    assert seen == []
    listener.receive(messages[2])
    assert seen == [CHILD]


def test_another_version_is_named_to_both():
    other = golden()[0][:8] + b"\x02\x01" + golden()[0][10:]
    listener = responder()
    with pytest.raises(HandshakeRefusedError) as caught:
        listener.receive(other[:16])
    assert caught.value.reason is Refusal.OTHER_VERSION
    assert str(caught.value) == (
        "handshake refused: the peer speaks version 258 of the handshake, this host 1: "
        "all hosts of a job must run the same version of whale-ray"
    )
    told = bytearray(caught.value.farewell)
    assert len(told) == 16
    dialler = initiator()
    told[8] = 9  # as seen by a host of version 1, whom a host of version 9 refused
    with pytest.raises(HandshakeRefusedError, match="the peer speaks version 9") as caught:
        dialler.receive(told)
    assert caught.value.farewell == b""


def test_foreign_bytes_are_refused_at_the_first():
    for begin in (b"GET / HTTP/1.1\r\n", b"\0", b"WHALEHZ"):
        listener = responder()
        with pytest.raises(HandshakeRefusedError, match="does not speak this protocol") as caught:
            listener.receive(begin)
        assert (caught.value.reason, caught.value.farewell) == (Refusal.FOREIGN, b"")
        assert listener.needs == 0


@pytest.mark.parametrize("size", [0, 1, 15, 16, 100, 223])
def test_a_truncated_message_is_named(size):
    listener = responder()
    assert listener.receive(golden()[0][:size]) == b""
    with pytest.raises(HandshakeRefusedError, match=f" {224 - size} bytes before") as caught:
        listener.ended()
    assert caught.value.reason is Refusal.TRUNCATED


def test_the_deadline_ends_it():
    listener = responder(deadline_ns=1000)
    listener.check_time(999)
    with pytest.raises(HandshakeRefusedError, match="whoever dialled said nothing") as caught:
        listener.check_time(1000)
    assert caught.value.reason is Refusal.LATE
    listener, dialler = responder(deadline_ns=1000), initiator(deadline_ns=1000)
    listener.receive(dialler.hello)
    for side, explanation in ((listener, "the handshake took too long"), (dialler, "no answer")):
        with pytest.raises(HandshakeRefusedError) as caught:
            side.check_time(1000)
        assert caught.value.explanation == explanation
        assert str(caught.value) == f"handshake refused: {explanation}"
    dialler, listener = initiator(deadline_ns=1), responder(deadline_ns=1)
    converse(dialler, listener)
    for side in (dialler, listener):
        side.check_time(5)
        side.ended()


def test_a_refusal_crosses_processes():
    error = HandshakeRefusedError("line", Refusal.LATE, b"bye")
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.reason, copy.farewell) == ("line", Refusal.LATE, b"bye")


# --- attackers ------------------------------------------------------------------------------


def refused(side: Initiator | Responder, message: bytes) -> Refusal:
    with pytest.raises(HandshakeRefusedError) as caught:
        side.receive(message)
    assert not side.done
    assert caught.value.farewell == b""
    return caught.value.reason


def test_a_replayed_conversation_is_refused():
    recorded = golden()
    listener = responder(nonce=b"f" * 32)
    assert len(listener.receive(recorded[0])) == HELLO_BYTES
    assert refused(listener, recorded[2]) is Refusal.REPLAYED
    dialler = initiator(nonce=b"f" * 32)
    assert refused(dialler, recorded[1]) is Refusal.WRONG_SECRET
    # A recorded proof is refused even if the challenge that it answers is a new one.
    dialler = initiator()
    live = responder(nonce=b"f" * 32).receive(dialler.hello)
    dialler.receive(live)
    assert refused(dialler, recorded[3]) is Refusal.REPLAYED


def test_a_reflected_conversation_is_refused():
    dialler = initiator()
    assert refused(dialler, dialler.hello) is Refusal.FOREIGN
    dialler = initiator()
    disguised = dialler.hello[:10] + b"\2" + dialler.hello[11:]
    assert refused(dialler, disguised) is Refusal.WRONG_SECRET
    listener = responder()
    challenge = listener.receive(golden()[0])
    assert refused(listener, challenge[:48]) is Refusal.FOREIGN
    # The dialler's connection leads back to the listener of its own host.
    error, _ = refusal(initiator(expects=""), responder(identity=CHILD))
    assert error.reason is Refusal.REFLECTED


@given(message=st.integers(0, 3), bit=st.integers(0), seed=st.integers(0, 2**32))
def test_every_bit_that_is_flipped_on_the_way_is_noticed(message, bit, seed):
    chance = random.Random(seed)
    dialler = initiator(nonce=chance.randbytes(32))
    listener = responder(nonce=chance.randbytes(32))
    flowing, at, other = dialler.hello, listener, dialler
    for number in range(message + 1):
        if number == message:
            altered = bytearray(flowing)
            altered[bit // 8 % len(altered)] ^= 1 << bit % 8
            with pytest.raises(HandshakeRefusedError):
                at.receive(altered)
            break
        flowing, at, other = at.receive(flowing), other, at
    assert not at.done
    # The listener has finished only if the altered message is the last one, which it sends.
    assert listener.done == (message == 3)


@given(
    order=st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 223), st.integers(1, 224)),
        max_size=6,
    )
)
def test_mixed_conversations_are_refused(order):
    """Pieces of two recordings, in any order, never complete a third handshake."""
    recordings = []
    for nonce in (b"1", b"2"):
        sides = initiator(nonce=nonce * 32), responder(nonce=nonce.upper().rjust(32))
        recordings.append(converse(*sides))
    for side in (initiator(nonce=b"9" * 32), responder(nonce=b"8" * 32)):
        pieces = [
            recordings[which % 2][message][start : start + size]
            for which, message, start, size in order
        ]
        error = feed(side, *pieces)
        assert error is None or error.farewell == b""
        assert not side.done


@given(st.lists(st.binary(max_size=300), max_size=5), st.booleans(), st.integers(0, 16))
def test_random_bytes_do_no_harm(chunks, dials, genuine):
    side = initiator() if dials else responder()
    begin = golden()[1 if dials else 0][:genuine]
    error = feed(side, begin, *chunks)
    if error is not None:
        assert error.reason in {Refusal.FOREIGN, Refusal.OTHER_VERSION, Refusal.WRONG_SECRET}
        assert len(error.farewell) <= 16
    assert not side.done


def introduced(content: bytes) -> Refusal | None:
    """Return what a responder says to a peer that knows the secret and introduces itself so."""
    hello = golden()[0][:16] + content[16:]
    hello += hmac.digest(SECRET, b"whale-ray handshake 1: initiator's hello" + hello, "sha256")
    listener = responder()
    challenge = listener.receive(hello)
    proof = golden()[2][:16]
    signed = b"whale-ray handshake 3: initiator's proof" + hello + challenge + proof
    error = feed(listener, proof + hmac.digest(SECRET, signed, "sha256"))
    assert listener.done == (error is None)
    return None if error is None else error.reason


@given(st.binary(min_size=192, max_size=192))
def test_a_peer_with_the_secret_and_a_broken_introduction_is_refused(content):
    """A fault, not an attack: it must not raise another kind of error."""
    assert introduced(content) in {Refusal.FOREIGN, Refusal.OTHER_JOB}


def test_a_name_has_one_spelling():
    content = bytearray(golden()[0][:192])
    assert introduced(bytes(content)) is None
    for place, byte in ((64 + 40, 1), (64, 64), (128, 255), (128, 0), (129, 0xFF), (191, 1)):
        changed = content.copy()
        changed[place] = byte
        assert introduced(bytes(changed)) is Refusal.FOREIGN


def test_an_unknown_reason_has_a_clear_message():
    dialler = initiator()
    challenge = responder().receive(dialler.hello)
    proof = dialler.receive(challenge)
    verdict = golden()[3][:11] + b"\xee" + golden()[3][12:16]
    said = dialler.hello + challenge + proof + verdict
    signed = b"whale-ray handshake 4: responder's verdict" + said
    message = verdict + hmac.digest(SECRET, signed, "sha256")
    with pytest.raises(HandshakeRefusedError, match="does not know, 238") as caught:
        dialler.receive(message)
    assert caught.value.reason is Refusal.FOREIGN
