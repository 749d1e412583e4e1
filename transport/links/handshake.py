"""Two hosts prove to each other that they belong to one job, before anything else is read.

Pure: bytes in, bytes out; nonces and times are passed in. Both know the job's secret, which Ray
carried to them, and show it by HMAC-SHA256 over everything said so far. Four messages of fixed
size, integers little-endian, the last 32 bytes of each its tag::

    initiator ── HELLO ──────► responder        HELLO and CHALLENGE, 224 bytes
              ◄── CHALLENGE ──                  PROOF and VERDICT, 48 bytes
              ── PROOF ──────►
              ◄── VERDICT ────                  initiator done; responder done at PROOF

    byte 0         8         10     11      12       16        24     32
         +---------+---------+------+-------+--------+---------+------+------------+
         | magic   | version | kind | reason|carriers| attempt | term | nonce, 32 B|
         +---------+---------+------+-------+--------+---------+------+------------+
    64   | job: length 1 B, UTF-8, zero up to 64 B                                 |
    128  | host: the same                                                          |
         +-------------------------------------------------------------------------+
    192  | tag: HMAC-SHA256(secret, label of the kind | all messages up to here)   |
         +-------------------------------------------------------------------------+

PROOF and VERDICT have the first 16 bytes and the tag only. *Reason* is 0 for consent, or why the
sender refuses (`Refusal`). *Carriers* are what else than this connection could carry the link, a
bit each; 0 for none, and in PROOF and VERDICT.

A tag covers all earlier messages, tags included: version, job, attempt, term, hosts, roles and both
nonces. So

- a recorded conversation does not fit the fresh nonce of either side (replay);
- no message of one role passes for one of the other, and no host talks to itself (reflection);
- a version changed on the way breaks the tag; one version exists, none is negotiated (downgrade).

A peer that does not know the secret gets no answer; only to a hello of another version go the
16 bytes that name ours. Nothing is decoded before that: a tag is checked over the raw bytes first.
A peer that is newer (attempt or term) refuses the older one, so both must know the same.

The handshake proves who begins a connection. It does not protect what is sent over it afterwards
from an attacker who can alter packets on the way.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Final, TypeAlias

from ...configs.errors import ProtocolError

PROTOCOL_VERSION: Final = 1
NONCE_BYTES: Final = 32
SECRET_BYTES_MIN: Final = 16
NAME_BYTES_MAX: Final = 63

_MAGIC: Final = b"WHALEHS\0"
_PREAMBLE: Final = struct.Struct("<8sHBBI")
_NUMBERS: Final = struct.Struct("<QQ")
_NAME_BYTES: Final = NAME_BYTES_MAX + 1
_TAG_BYTES: Final = hashlib.sha256().digest_size
_NONCE: Final = slice(32, 64)
HELLO_BYTES: Final = 224
PROOF_BYTES: Final = 48

_HELLO, _CHALLENGE, _PROOF, _VERDICT, _OTHER_VERSION = range(1, 6)
_LABELS: Final = {
    _HELLO: b"whale-ray handshake 1: initiator's hello",
    _CHALLENGE: b"whale-ray handshake 2: responder's challenge",
    _PROOF: b"whale-ray handshake 3: initiator's proof",
    _VERDICT: b"whale-ray handshake 4: responder's verdict",
}
_NUMBER_MAX: Final = (1 << 64) - 1


class Refusal(enum.Enum):
    """Why a handshake failed; the numbers travel."""

    FOREIGN = 1
    """Bytes that are no message of the handshake, or not the one that is due."""
    OTHER_VERSION = 2
    """The peer speaks another version of this protocol."""
    WRONG_SECRET = 3
    """The peer does not know the job's secret, or its message was altered on the way."""
    REPLAYED = 4
    """The peer's proof does not answer our challenge: it is a recording, or was altered."""
    REFLECTED = 5
    """We talk to ourselves."""
    OTHER_JOB = 6
    """The peer belongs to another job."""
    OTHER_HOST = 7
    """The peer is not the host that was dialled."""
    OLDER_ATTEMPT = 8
    """The peer belongs to an attempt that is over."""
    OLDER_TERM = 9
    """The peer follows a controller that has been replaced."""
    NOT_ACCEPTED = 10
    """The caller's own `accept` said no."""
    TRUNCATED = 11
    """The connection ended before the handshake did."""
    LATE = 12
    """The handshake was not over at its deadline."""

    @property
    def words(self) -> str:
        """The name as people read it."""
        return self.name.lower().replace("_", " ")


_PREFIX: Final = "handshake refused: "


class HandshakeRefusedError(ProtocolError):
    """The handshake failed: the connection must be closed, after `farewell` was sent, if any."""

    def __init__(self, message: str, reason: Refusal, farewell: bytes = b"") -> None:
        super().__init__(message, reason, farewell)
        self.message = message
        self.reason = reason
        self.farewell = farewell
        """What tells an authenticated peer why; empty for strangers. Need not arrive."""

    @property
    def explanation(self) -> str:
        """The message without saying that a handshake was refused."""
        return self.message.removeprefix(_PREFIX)

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True, slots=True)
class Identity:
    """What a host says of itself."""

    job: str
    """Job id, at most NAME_BYTES_MAX bytes in UTF-8, like the host."""
    attempt: int
    term: int
    """Term of the controller that it follows."""
    host: str
    """Logical name."""

    def __post_init__(self) -> None:
        """Refuse what does not fit the message; ValueError."""
        for what, name in (("job", self.job), ("host", self.host)):
            if not 1 <= len(name.encode()) <= NAME_BYTES_MAX:
                msg = f"{what} name {name!r}: it must take 1 to {NAME_BYTES_MAX} bytes"
                raise ValueError(msg)
        for what, number in (("attempt", self.attempt), ("term", self.term)):
            if not 0 <= number <= _NUMBER_MAX:
                msg = f"{what} {number}: it must lie between 0 and 2**64 - 1"
                raise ValueError(msg)


Accept: TypeAlias = Callable[[Identity], str | None]
"""Looks at an authenticated peer of the same job; returns None, or a line that says why not."""


def _anybody(_peer: Identity) -> str | None:
    return None


class _Side(ABC):
    """What both sides share: collecting one message, checking its tag, judging the peer."""

    _SILENT: ClassVar[str]  # what to say of a peer that never said anything

    def __init__(
        self,
        identity: Identity,
        secret: bytes,
        nonce: bytes,
        accept: Accept,
        deadline_ns: int,
        carriers: int,
    ) -> None:
        if len(secret) < SECRET_BYTES_MIN:
            msg = f"a secret of {len(secret)} bytes: it must have {SECRET_BYTES_MIN} at least"
            raise ValueError(msg)
        if len(nonce) != NONCE_BYTES:
            msg = f"a nonce of {len(nonce)} bytes: it must have {NONCE_BYTES}"
            raise ValueError(msg)
        self.identity: Final = identity
        self.deadline_ns: Final = deadline_ns
        """When the handshake must be over, on the clock that `check_time` is called with."""
        self._secret = secret
        self._nonce = nonce
        self._accept = accept
        self.carriers: Final = carriers
        """The carriers that this side offers."""
        self.peers_carriers = 0
        """The carriers that the peer has offered, once `done`."""
        self._transcript = b""
        self._received = b""
        self._due = 0
        self._size = 0
        self._peer: Identity | None = None
        self._done = False

    @property
    def done(self) -> bool:
        """Whether both have proved who they are; only then bytes of other kinds may be read."""
        return self._done

    @property
    def introduced(self) -> bool:
        """Whether the peer's first message was authentic; it may be a recording."""
        return self._due in {_PROOF, _VERDICT}

    @property
    def needs(self) -> int:
        """Bytes of the message that is due that are still missing: read no more than these.

        0 once the handshake is done or refused.
        """
        return self._size - len(self._received)

    @property
    def peer(self) -> Identity:
        """Who the peer is; RuntimeError before `done`."""
        if not self._done or self._peer is None:
            msg = "the peer is not known before the handshake is done"
            raise RuntimeError(msg)
        return self._peer

    def receive(self, data: bytes | bytearray | memoryview) -> bytes:
        """Take `data`, at most `needs` bytes; return what must be sent now, often nothing.

        Raises HandshakeRefusedError, and ValueError for more bytes than needed.
        """
        if len(data) > self.needs:
            msg = f"{len(data)} bytes of a handshake that needs {self.needs}"
            raise ValueError(msg)
        self._received += bytes(data)
        self._check_preamble()
        if self.needs > 0 or self._size == 0:
            return b""
        message, self._received, self._size = self._received, b"", 0
        return self._answer(message)

    def check_time(self, now_ns: int) -> None:
        """Raise HandshakeRefusedError if the deadline has come and the handshake is not over."""
        if not self._done and now_ns >= self.deadline_ns:
            heard = self.introduced or self._received
            explanation = "the handshake took too long" if heard else self._SILENT
            raise self._refused(Refusal.LATE, explanation)

    def ended(self) -> None:
        """Take note that the peer has closed: raises HandshakeRefusedError unless done.

        A responder of another secret ends like this, without a word.
        """
        if not self._done:
            raise self._refused(
                Refusal.TRUNCATED,
                f"the peer closed the connection within the handshake, {self.needs} bytes before "
                "the end of its message: its secret or version may be another, or it is full",
            )

    @abstractmethod
    def _answer(self, message: bytes) -> bytes:
        """Take a whole message, the one that is due; return the answer."""

    def _await(self, kind: int, size: int) -> None:
        self._due, self._size = kind, size

    def _check_preamble(self) -> None:
        """Refuse foreign bytes as soon as they show, not when a message would be whole."""
        seen = min(len(self._received), len(_MAGIC))
        if self._received[:seen] != _MAGIC[:seen]:
            raise self._refused(Refusal.FOREIGN, "the peer does not speak this protocol")
        if len(self._received) < _PREAMBLE.size:
            return
        _, version, kind, _, _ = _PREAMBLE.unpack_from(self._received)
        if version != PROTOCOL_VERSION:
            raise self._other_version(version)
        if kind != self._due:
            msg = f"the peer sent message {kind} of the handshake where {self._due} is due"
            raise self._refused(Refusal.FOREIGN, msg)

    def _other_version(self, version: int) -> HandshakeRefusedError:
        return self._refused(
            Refusal.OTHER_VERSION,
            f"the peer speaks version {version} of the handshake, this host {PROTOCOL_VERSION}: "
            "all hosts of a job must run the same version of whale-ray",
        )

    def _sign(self, kind: int, content: bytes) -> bytes:
        """Append a message of our own to the transcript and return it, tag included."""
        tag = self._tag(kind, content)
        self._transcript += content + tag
        return content + tag

    def _tag(self, kind: int, content: bytes) -> bytes:
        signed = _LABELS[kind] + self._transcript + content
        return hmac.digest(self._secret, signed, "sha256")

    def _verify(self, kind: int, message: bytes, reason: Refusal, explanation: str) -> None:
        """Append the peer's message to the transcript if its tag is right; refuse it if not."""
        content, tag = message[:-_TAG_BYTES], message[-_TAG_BYTES:]
        if not hmac.compare_digest(tag, self._tag(kind, content)):
            raise self._refused(reason, explanation)
        self._transcript += message

    def _introduction(self, kind: int) -> bytes:
        """Return our signed HELLO or CHALLENGE."""
        me = self.identity
        content = _PREAMBLE.pack(_MAGIC, PROTOCOL_VERSION, kind, 0, self.carriers)
        content += _NUMBERS.pack(me.attempt, me.term) + self._nonce
        return self._sign(kind, content + _packed(me.job) + _packed(me.host))

    def _statement(self, kind: int, reason: Refusal | None) -> bytes:
        """Return our signed PROOF or VERDICT."""
        code = 0 if reason is None else reason.value
        return self._sign(kind, _PREAMBLE.pack(_MAGIC, PROTOCOL_VERSION, kind, code, 0))

    def _check_statement(self, message: bytes) -> None:
        """Take the peer's PROOF or VERDICT; refuse a wrong one, and one that refuses us."""
        explanation = "the peer's proof does not answer our challenge: a recording, or altered"
        self._verify(self._due, message, Refusal.REPLAYED, explanation)
        code = _PREAMBLE.unpack_from(message)[3]
        if code == 0:
            return
        try:
            reason = Refusal(code)
        except ValueError:
            msg = f"it refused for a reason that this version does not know, {code}"
            raise self._refused(Refusal.FOREIGN, msg) from None
        raise self._refused(reason, f"it refused: {reason.words}")

    def _judge(self, introduction: bytes, farewell_kind: int, expects: str = "") -> None:
        """Decode an authenticated introduction and refuse a peer that we must not talk to."""
        peer = self._decode(introduction)
        me = self.identity
        reason, explanation = None, ""
        if peer.host == me.host or introduction[_NONCE] == self._nonce:
            reason, explanation = Refusal.REFLECTED, f"the peer is this host, {me.host!r}, itself"
        elif peer.job != me.job:
            reason, explanation = Refusal.OTHER_JOB, f"host {peer.host!r} is of job {peer.job!r}"
        elif expects not in {"", peer.host}:
            explanation = f"host {expects!r} was dialled, {peer.host!r} answered"
            reason = Refusal.OTHER_HOST
        elif peer.attempt < me.attempt:
            explanation = f"host {peer.host!r} is at attempt {peer.attempt}, this is {me.attempt}"
            reason = Refusal.OLDER_ATTEMPT
        elif peer.term < me.term:
            explanation = f"host {peer.host!r} is at term {peer.term}, this is {me.term}"
            reason = Refusal.OLDER_TERM
        elif (said := self._accept(peer)) is not None:
            reason, explanation = Refusal.NOT_ACCEPTED, f"host {peer.host!r}: {said}"
        if reason is not None:
            raise self._refused(reason, explanation, self._statement(farewell_kind, reason))
        self._peer = peer
        self.peers_carriers = _PREAMBLE.unpack_from(introduction)[4]

    def _decode(self, introduction: bytes) -> Identity:
        try:
            attempt, term = _NUMBERS.unpack_from(introduction, _PREAMBLE.size)
            job, host = _unpacked(introduction, 64), _unpacked(introduction, 128)
            return Identity(job, attempt, term, host)
        except ValueError as error:  # also what is not UTF-8
            msg = f"the peer's introduction cannot be read: {error}"
            raise self._refused(Refusal.FOREIGN, msg) from None

    def _refused(
        self, reason: Refusal, explanation: str, farewell: bytes = b""
    ) -> HandshakeRefusedError:
        """Make the error, after which this side takes no more bytes."""
        self._received, self._size = b"", 0
        return HandshakeRefusedError(_PREFIX + explanation, reason, farewell)


class Initiator(_Side):
    """The side that dialled. It sends `hello` first."""

    _SILENT = "no answer"

    def __init__(
        self,
        identity: Identity,
        secret: bytes,
        nonce: bytes,
        *,
        expects: str = "",
        accept: Accept = _anybody,
        deadline_ns: int = (1 << 63) - 1,
        carriers: int = 0,
    ) -> None:
        """Begin a handshake; `nonce`: NONCE_BYTES fresh random bytes, used only here.

        `expects` is the host that was dialled, empty if any will do; `accept` sees the peer
        last; `carriers` are offered to it. Raises ValueError for a secret or nonce of wrong size.
        """
        super().__init__(identity, secret, nonce, accept, deadline_ns, carriers)
        self._expects = expects
        self.hello: Final = self._introduction(_HELLO)
        """What must be sent first."""
        self._await(_CHALLENGE, HELLO_BYTES)

    def _answer(self, message: bytes) -> bytes:
        if self._due == _CHALLENGE:
            explanation = "the peer does not know this job's secret, or its message was altered"
            self._verify(_CHALLENGE, message, Refusal.WRONG_SECRET, explanation)
            self._judge(message, _PROOF, self._expects)
            self._await(_VERDICT, PROOF_BYTES)
            return self._statement(_PROOF, None)
        self._check_statement(message)
        self._done = True
        return b""


class Responder(_Side):
    """The side that was dialled. It answers."""

    _SILENT = "whoever dialled said nothing"

    def __init__(
        self,
        identity: Identity,
        secret: bytes,
        nonce: bytes,
        *,
        accept: Accept = _anybody,
        deadline_ns: int = (1 << 63) - 1,
        carriers: int = 0,
    ) -> None:
        """Await a handshake; the arguments are as the initiator's."""
        super().__init__(identity, secret, nonce, accept, deadline_ns, carriers)
        self._hello = b""
        self._await(_HELLO, HELLO_BYTES)

    def _answer(self, message: bytes) -> bytes:
        if self._due == _HELLO:
            explanation = "the peer does not know this job's secret, or its message was altered"
            self._verify(_HELLO, message, Refusal.WRONG_SECRET, explanation)
            # It may be a recording: who it claims to be is read once it has proved to be fresh.
            self._hello = message
            self._await(_PROOF, PROOF_BYTES)
            return self._introduction(_CHALLENGE)
        self._check_statement(message)
        self._judge(self._hello, _VERDICT)
        self._done = True
        return self._statement(_VERDICT, None)

    def _other_version(self, version: int) -> HandshakeRefusedError:
        error = super()._other_version(version)
        error.farewell = _PREAMBLE.pack(_MAGIC, PROTOCOL_VERSION, _OTHER_VERSION, 0, 0)
        return error


def _packed(name: str) -> bytes:
    encoded = name.encode()
    return bytes([len(encoded)]) + encoded.ljust(NAME_BYTES_MAX, b"\0")


def _unpacked(message: bytes, start: int) -> str:
    length = message[start]
    padding = message[start + 1 + length : start + _NAME_BYTES]
    if length > NAME_BYTES_MAX or any(padding):
        msg = "a name is too long or not padded with zeros"
        raise ValueError(msg)
    return message[start + 1 : start + 1 + length].decode()
