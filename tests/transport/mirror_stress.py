"""A relay between two hosts' rings, killed at random moments and replaced.

A program: `python mirror_stress.py SEED ROUNDS` prints one JSON object, and ends with an
AssertionError and `replay: seed=… round=…` at the first fault. In every round

- this process writes numbered frames into a ring, and reads two mirrors, whose memory it has made;
- a relay process taps the ring and fills the first mirror, taps that and fills the second one, in
  pieces and orders drawn by chance; it is killed with SIGKILL again and again, wherever it is, once
  more after the writer has closed, and another one goes on from what the memory says. The writer
  goes on until only that last kill is left, and no relay ends by itself, so all are made;
- both readers must get every frame, intact and in order, none lost and none twice.

Relays are forked from here, which is single-threaded and has compiled everything already.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import signal
import sys
import time
import traceback
import zlib
from dataclasses import dataclass

import numpy as np

from whale_ray.transport.channel import Outcome
from whale_ray.transport.doorbell import DoorbellBoard
from whale_ray.transport.handles import BoardHandle, RingHandle
from whale_ray.transport.mirror import MirrorRing, RingTap, make_memory
from whale_ray.transport.ring import RingConsumer, RingProducer
from whale_ray.transport.segment import Segment
from whale_ray.transport.shm import attach_ring, create_ring

RING_BYTES = 1 << 14
ROUND_LIMIT_S = 60.0
NOISE = random.Random(1).randbytes(1 << 13)
JOB = f"mirrors{os.getpid()}"
PR_SET_PDEATHSIG = 1
TAP, READER = 0, 0
"""The relay's place in the ring, and the local reader's in each mirror; its tap comes behind."""


def content(number: int, size: int) -> bytes:
    """Return frame `number`: its number, its checksum, and noise."""
    body = NOISE[number % 1000 : number % 1000 + size]
    return number.to_bytes(8, "little") + zlib.crc32(body).to_bytes(8, "little") + body


class Hop:
    """Copies from a tap to a mirror, as two relays and the link between them do."""

    def __init__(self, tap: RingTap, mirror: MirrorRing, chance: random.Random) -> None:
        self.tap, self.mirror, self._chance = tap, mirror, chance

    def step(self) -> None:
        """Take one of the possible next steps."""
        tap, mirror, chance = self.tap, self.mirror, self._chance
        what = chance.random()
        if what < 0.5:
            self._carry()
        elif what < 0.7:
            # The acknowledged position, or an earlier one.
            tap.release(min(mirror.received, tap.released + chance.randrange(RING_BYTES)))
        elif what < 0.9:
            mirror.publish()
        else:
            end = tap.finished_at
            if end is not None and mirror.received == mirror.published == end:
                mirror.finished_at = end
                mirror.finish()

    def _carry(self) -> None:
        start = self.mirror.received
        room = min(self.tap.head, self.mirror.limit) - start
        nbytes = min(room, 64 * self._chance.randrange(1, 64))
        if nbytes <= 0:
            return
        whole = b"".join(self.tap.pieces(start, start + nbytes))
        for place in self.mirror.writable(start, nbytes):
            cut = self._chance.randrange(len(place) + 1)
            place[:cut] = whole[:cut]
            place[cut:] = whole[cut : len(place)]
            whole = whole[len(place) :]
        # Advance once at the end, or in steps of 64 bytes.
        done = 64 * self._chance.randrange(nbytes // 64 + 1)
        if done:
            self.mirror.advance(done)
        if nbytes > done:
            self.mirror.advance(nbytes - done)


@dataclass(frozen=True)
class Round:
    """One round."""

    seed: str
    frames: int
    kills: int
    poison: bool
    ring: Segment
    mirrors: tuple[RingHandle, RingHandle]
    board: BoardHandle

    def relay(self, life: int) -> None:
        """Run a relay until it is killed: the body of a process."""
        chance = random.Random(f"{self.seed}/{life}")
        bell = DoorbellBoard.attach(self.board).doorbell(0)
        first, second = (
            MirrorRing.attach(handle, [bell], poison_released=self.poison)
            for handle in self.mirrors
        )
        tap = RingTap(self.ring.share(), TAP, bell, resume=True)
        further = RingTap.of(first, READER + 1, resume=True)
        assert tap.released <= first.received, "what is not here was given back"
        assert further.released <= min(first.received, second.received)
        hops = (Hop(tap, first, chance), Hop(further, second, chance))
        while True:
            chance.choice(hops).step()

    def start(self, life: int) -> int:
        """Fork a relay; return its process id."""
        pid = os.fork()
        if pid:
            return pid
        try:
            # The kernel kills it when the driver ends, however that ends.
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            self.relay(life)
        except BaseException:  # noqa: BLE001 - whatever it was, it is printed
            traceback.print_exc()
        os._exit(1)


class Ends:
    """The writer of the ring and the readers of the mirrors."""

    def __init__(self, round_: Round, producer: RingProducer, readers: list[RingConsumer]) -> None:
        self._producer, self._readers = producer, readers
        self._frames = round_.frames
        self._chance = random.Random(f"{round_.seed}/ends")
        self._next = b""
        self.sent = 0
        self.closed = False
        self.received = [0] * len(readers)

    def step(self, *, goes_on: bool) -> None:
        """Send a few frames, read a few; close after the last one, unless the stream goes on."""
        for _ in range(self._chance.randrange(20)):
            if goes_on or self.sent < self._frames:
                self._next = self._next or content(self.sent, self._chance.randrange(3000))
                outcome = self._producer.put_copy(np.frombuffer(self._next, np.uint8))
                if outcome is not Outcome.SENT:
                    break
                self._next = b""
                self.sent += 1
        if not goes_on and self.sent >= self._frames:
            self._producer.close()
            self.closed = True
        for index, reader in enumerate(self._readers):
            for _ in range(self._chance.randrange(20)):
                frame = reader.get()
                if frame is None:
                    break
                self._check(index, frame.data.tobytes())
                reader.release_buffer(frame)

    def _check(self, index: int, frame: bytes) -> None:
        number, checksum, body = int.from_bytes(frame[:8], "little"), frame[8:16], frame[16:]
        expected = self.received[index]
        assert number == expected, f"mirror {index} shows {number} where {expected} is due"
        assert int.from_bytes(checksum, "little") == zlib.crc32(body), f"frame {number} is damaged"
        self.received[index] += 1

    @property
    def over(self) -> bool:
        return all(reader.closed_by_peer for reader in self._readers)


def assert_lives(pid: int) -> None:
    """Check that a relay has not ended, which it only does if it fails."""
    ended, _ = os.waitpid(pid, os.WNOHANG)
    assert not ended, "a relay failed"


def kill(pid: int) -> None:
    """Kill a living relay."""
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status), "a relay failed"


def play_round(seed: int, number: int) -> dict[str, int]:
    """Play one round; AssertionError if anything is lost, doubled or damaged."""
    chance = random.Random(f"{seed}/{number}")
    kind = chance.choice(("memfd", "named"))
    producer, ring = create_ring(RING_BYTES, 1, JOB, f"ring-{number}", kind=kind)
    memories = [make_memory(RING_BYTES, 2 - i, JOB, f"m-{number}-{i}", kind) for i in range(2)]
    board = DoorbellBoard.create(1, 0, f"{JOB}-{number}")
    round_ = Round(
        f"{seed}/{number}",
        frames=chance.randrange(200, 1500),
        kills=chance.randrange(1, 20),
        poison=chance.random() < 0.5,
        # Held from here: the writer may close it before the last relay begins.
        ring=Segment.attach(ring.segment),
        mirrors=(memories[0][1], memories[1][1]),
        board=board.handle,
    )
    readers = [attach_ring(handle, READER) for handle in round_.mirrors]
    ends = Ends(round_, producer, readers)
    killed, pid = 0, round_.start(0)
    deadline = time.monotonic() + ROUND_LIMIT_S
    while killed < round_.kills or not ends.over:
        assert time.monotonic() < deadline, f"stuck at {ends.sent} sent, {ends.received} received"
        goes_on = killed < round_.kills - 1
        for _ in range(1 + chance.randrange(60)):
            ends.step(goes_on=goes_on)
        os.sched_yield()
        assert_lives(pid)
        if goes_on or (ends.closed and killed < round_.kills):
            kill(pid)
            killed += 1
            pid = round_.start(killed)
    kill(pid)
    assert ends.received == [ends.sent] * 2
    for end in (producer, round_.ring, *readers, *(segment for segment, _ in memories), board):
        end.close()
    return {"frames": ends.sent, "killed": killed}


def main(seed: int, rounds: int) -> None:
    """Play all rounds."""
    totals = {"frames": 0, "killed": 0}
    for number in range(rounds):
        try:
            for name, value in play_round(seed, number).items():
                totals[name] += value
        except AssertionError:
            sys.stderr.write(f"replay: seed={seed} round={number}\n")
            raise
    sys.stdout.write(json.dumps(totals) + "\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
