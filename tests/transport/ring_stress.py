"""Writers and readers of one ring, in processes of their own, killed at random moments.

A program: `python -m tests.transport.ring_stress SEED ROUNDS` prints one JSON object, and ends with
an AssertionError and `replay: seed=… round=…` at the first fault. In every round

- a writer process sends numbered frames with checksums to up to three reader processes;
- this process watches the ring's head and, once it has passed a random position, kills with
  SIGKILL the writer, some readers, both or nobody, and tells the survivors, which otherwise would
  rightly wait; as long as somebody is to be killed the stream goes on, so that every kill falls
  into the middle of it, however slow the machine is;
- every living reader must have got every frame, intact and in order, none lost and none twice: up
  to the writer's last one, or up to the last one that the killed writer had committed; and a
  living writer must get through, whoever died;
- no wake-up may be lost: where nobody dies, nobody sleeps but until it is rung for;
- nothing may be left: no process, no file descriptor, no segment.

Processes are forked from here, which is single-threaded and has compiled everything already.
"""

from __future__ import annotations

import ctypes
import json
import os
import pickle
import random
import select
import signal
import sys
import threading
import time
import traceback
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from whale_ray.transport.channel import Frame, Outcome
from whale_ray.transport.doorbell import Doorbell, DoorbellBoard
from whale_ray.transport.handles import BoardHandle, RingHandle
from whale_ray.transport.ring import RingConsumer, RingProducer
from whale_ray.transport.ring_layout import HEAD
from whale_ray.transport.segment import SHM_DIRECTORY, Segment, SegmentKind, Words
from whale_ray.transport.shm import attach_ring, create_ring

RING_BYTES = 1 << 16
READERS_MAX = 3
ROUND_LIMIT_S = 60.0
SLEEP_NS = 1_000_000_000
"""A ringer that is killed before it wakes somebody delays that one until its timeout."""
UNTIL_RUNG_NS = 3600 * SLEEP_NS
"""Beyond any round: if a wake-up is lost the round stands still."""
NOISE = np.frombuffer(random.Random(1).randbytes(1 << 13), np.uint8)
PREFIX_BYTES = 16
JOB = f"stress{os.getpid()}"
PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Round:
    """One round, drawn from its seed."""

    seed: str
    kind: SegmentKind
    readers: int
    frames: int
    poison: bool
    kills_writer: bool
    victims: tuple[int, ...]
    kill_position: int

    @classmethod
    def draw(cls, seed: int, number: int) -> Round:
        chance = random.Random(f"{seed}/{number}")
        readers = chance.randint(1, READERS_MAX)
        frames = chance.randint(100, 2000)
        return cls(
            seed=f"seed={seed} round={number}",
            kind=chance.choice(("memfd", "named")),
            readers=readers,
            frames=frames,
            poison=chance.random() < 0.3,
            kills_writer=chance.random() < 0.4,
            victims=tuple(r for r in range(readers) if chance.random() < 0.4),
            kill_position=chance.randint(0, frames * 1000),
        )

    @property
    def kills(self) -> bool:
        return self.kills_writer or bool(self.victims)


def sleep_ns(kills: bool) -> int:
    """Return how long a process sleeps at most that nobody rings for."""
    return SLEEP_NS if kills else UNTIL_RUNG_NS


# The processes


class Process:
    """A forked process with one pipe for orders and one for its answers, all pickled lines."""

    def __init__(self, body: Callable[[Process], dict[str, Any]]) -> None:
        order_read, self._orders = os.pipe()
        self._answers, answer_write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._orders)
            os.close(self._answers)
            self._orders, self._answers = order_read, answer_write
            self._run(body)
        os.close(order_read)
        os.close(answer_write)

    def _run(self, body: Callable[[Process], dict[str, Any]]) -> None:
        try:
            # The kernel kills it when the driver ends, however that ends.
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            self.answer(body(self))
        except BaseException:  # noqa: BLE001 - whatever it was, the driver raises it
            self.answer({"error": traceback.format_exc()})
        finally:
            os._exit(0)

    def answer(self, value: object) -> None:
        """Send the driver an answer (called in the process)."""
        _write(self._answers, value)

    def await_order(self) -> Any:
        """Wait for the driver (called in the process)."""
        return _read(self._orders)

    def order(self, value: object) -> None:
        """Send the process an order; it may be dead already."""
        try:
            _write(self._orders, value)
        except BrokenPipeError:
            pass

    def await_answer(self) -> Any:
        """Wait for the process; None if it was killed before it answered."""
        ready, _, _ = select.select([self._answers], [], [], ROUND_LIMIT_S)
        assert ready, f"process {self.pid} neither answers nor ends: was a wake-up lost?"
        return _read(self._answers)

    def end(self) -> None:
        os.waitpid(self.pid, 0)
        self.pid = 0
        os.close(self._orders)
        os.close(self._answers)


def kill_all(victims: Sequence[Process]) -> None:
    """Kill processes at one moment, and wait until they are dead."""
    for victim in victims:
        os.kill(victim.pid, signal.SIGKILL)
    for victim in victims:
        os.waitid(os.P_PID, victim.pid, os.WEXITED | os.WNOWAIT)


def _write(fd: int, value: object) -> None:
    content = pickle.dumps(value)
    os.write(fd, len(content).to_bytes(4, "little") + content)


def _read(fd: int) -> Any:
    size = os.read(fd, 4)
    return pickle.loads(os.read(fd, int.from_bytes(size, "little"))) if size else None


def follow_orders(process: Process, carry_out: Callable[[Any], None], doorbell: Doorbell) -> None:
    """Carry out the driver's orders in a thread, as a worker's control thread would."""

    def follow() -> None:
        while (order := process.await_order()) is not None:
            carry_out(order)
            doorbell.ring()

    threading.Thread(target=follow, daemon=True).start()


def content_of(number: int, chance: random.Random, sizes: Sequence[int]) -> np.ndarray:
    """Return frame `number`: its number, a checksum and some noise, less than one of `sizes`.

    uint8 (n,).
    """
    start, size = chance.randrange(4000), chance.randrange(chance.choice(sizes))
    content = np.empty(PREFIX_BYTES + size, np.uint8)
    content[PREFIX_BYTES:] = NOISE[start : start + size]
    content[:8] = np.frombuffer(number.to_bytes(8, "little"), np.uint8)
    checksum = zlib.crc32(content[PREFIX_BYTES:], number)
    content[8:PREFIX_BYTES] = np.frombuffer(checksum.to_bytes(8, "little"), np.uint8)
    return content


def number_of(content: np.ndarray) -> int:
    """Return the number of a received frame, whose bytes must be intact."""
    number = int.from_bytes(content[:8].tobytes(), "little")
    checksum = int.from_bytes(content[8:PREFIX_BYTES].tobytes(), "little")
    assert zlib.crc32(content[PREFIX_BYTES:], number) == checksum, f"frame {number} is torn"
    return number


def write(process: Process, plan: Round, board_handle: BoardHandle) -> dict[str, Any]:
    """Be the writer: its doorbell is the last one of the board."""
    board = DoorbellBoard.attach(board_handle)
    doorbells = [board.doorbell(reader) for reader in range(plan.readers)]
    mine = board.doorbell(READERS_MAX, spin_pauses=20)
    producer, handle = create_ring(
        RING_BYTES, plan.readers, JOB, "ring", doorbells, kind=plan.kind,
        poison_released=plan.poison,
    )  # fmt: skip
    process.answer(handle)
    process.await_order()
    living = set(range(plan.readers))

    def drop(reader: int) -> None:
        producer.drop_reader(reader)
        living.remove(reader)

    follow_orders(process, drop, mine)
    numbers = numbers_until(
        lambda: not plan.kills_writer and living.isdisjoint(plan.victims), plan.frames
    )
    return send_all(
        producer, mine, random.Random(plan.seed), numbers, (50, 4000),
        slack=100, timeout_ns=sleep_ns(plan.kills),
    )  # fmt: skip


def numbers_until(all_killed: Callable[[], bool], further: int) -> Iterator[int]:
    """Count as long as somebody is to be killed, then `further` numbers more."""
    number = 0
    while not all_killed():
        yield number
        number += 1
    yield from range(number, number + further)


def send_all(
    end: RingProducer,
    doorbell: Doorbell,
    chance: random.Random,
    numbers: Iterable[int],
    sizes: Sequence[int],
    *,
    slack: int,
    timeout_ns: int,
) -> dict[str, Any]:
    """Send frames of these numbers, with room for less than `slack` bytes more; then close."""
    sent = 0

    def has_room(size: int) -> bool:
        return end.ready_to_send(size + slack) is not Outcome.BACK_PRESSURED

    for number in numbers:
        content = content_of(number, chance, sizes)
        while (outcome := _put(end, content, number, slack)) is Outcome.BACK_PRESSURED:
            doorbell.wait(timeout_ns, lambda size=content.size: has_room(size))
        if outcome is Outcome.CLOSED:
            return {"sent": sent, "got_through": False}
        assert outcome is Outcome.SENT
        sent += 1
    end.close()
    return {"sent": sent, "got_through": True}


def _put(end: RingProducer, content: np.ndarray, number: int, slack: int) -> Outcome:
    if number % 2:
        return end.put_copy(content)

    def encode(buffer: np.ndarray) -> int:
        buffer[: content.size] = content
        return content.size

    return end.put(content.size + number % slack, encode)


def read(
    process: Process, plan: Round, handle: RingHandle, board_handle: BoardHandle, reader: int
) -> dict[str, Any]:
    """Be a reader: check every frame, keep some views for a while and check them again."""
    board = DoorbellBoard.attach(board_handle)
    mine = board.doorbell(reader, spin_pauses=20)
    consumer = attach_ring(handle, reader, board.doorbell(READERS_MAX))
    process.answer("attached")
    writer_died = threading.Event()
    follow_orders(process, lambda _order: writer_died.set(), mine)
    chance = random.Random(f"{plan.seed} reader={reader}")
    stored: deque[tuple[int, np.ndarray]] = deque(maxlen=100)
    received = end = 0

    def ended() -> bool:
        return consumer.closed_by_peer or (writer_died.is_set() and not consumer.available())

    def ready() -> bool:
        return consumer.available() or ended()

    while True:
        frame = consumer.get()
        if frame is None:
            if ended():
                break
            stored.clear()
            mine.wait(sleep_ns(plan.kills), ready)
            continue
        number, end = _take(consumer, frame, stored if chance.random() < 0.1 else None)
        assert number == received, f"reader {reader} got frame {number} instead of {received}"
        received += 1
        while stored and (consumer.statistics().held_bytes > 8192 or chance.random() < 0.2):
            number, view = stored.popleft()
            assert number_of(view) == number, f"stored frame {number} has changed"
            del view
    return {"received": received, "end": end}


def _take(
    consumer: RingConsumer, frame: Frame, stored: deque[tuple[int, np.ndarray]] | None
) -> tuple[int, int]:
    number, end = number_of(frame.data), frame.end
    if stored is not None:
        stored.append((number, frame.data[:]))
    consumer.release_buffer(frame)
    return number, end


# The driver


def play(plan: Round, board: DoorbellBoard) -> dict[str, int]:
    """Play one round and check it; return what happened."""
    writer = Process(lambda process: write(process, plan, board.handle))
    handle = writer.await_answer()
    assert isinstance(handle, RingHandle), handle
    watched = Segment.attach(handle.segment)
    readers = []
    for index in range(plan.readers):
        readers.append(
            Process(lambda process, index=index: read(process, plan, handle, board.handle, index))
        )
        assert readers[-1].await_answer() == "attached"
    writer.order("go")
    if plan.kills:
        _kill_at_random(plan, watched, writer, readers)
    answers = [reader.await_answer() for reader in readers]
    written = writer.await_answer()
    for process in (writer, *readers):
        process.end()
    head = int(watched.words(HEAD, HEAD + 8)[0])
    watched.close()
    _check(plan, written, answers, head)
    left = list(SHM_DIRECTORY.glob(f"whale-ray-{JOB}-*"))
    for path in left:
        path.unlink()
    got_through = written is not None and written["got_through"]
    assert not (left and got_through), "a writer that gets through removes its segment"
    assert not (left and plan.kind == "memfd")
    frames = [answer["received"] for answer in answers if answer is not None]
    return {
        "frames": written["sent"] if written is not None else max(frames, default=0),
        "writers_killed": int(written is None),
        "readers_killed": answers.count(None),
    }


def _kill_at_random(plan: Round, watched: Segment, writer: Process, readers: list[Process]) -> None:
    """Kill the victims once the head has passed the drawn position; tell the others."""
    wait_for_position(watched.words(HEAD, HEAD + 8), plan.kill_position)
    kill_all([writer] * plan.kills_writer + [readers[victim] for victim in plan.victims])
    for victim in plan.victims:
        writer.order(victim)
    if plan.kills_writer:
        for reader in readers:
            reader.order("the writer is dead")


def wait_for_position(position: Words, due: int) -> None:
    """Watch a position until it is `due`, as closely as that is possible."""
    deadline_s = time.monotonic() + ROUND_LIMIT_S
    while position[0] < due:
        os.sched_yield()
        assert time.monotonic() < deadline_s, f"the stream stands still at {position[0]}"


def _check(
    plan: Round,
    written: dict[str, Any] | None,
    answers: list[dict[str, Any] | None],
    head: int,
) -> None:
    for answer in (written, *answers):
        assert answer is None or "error" not in answer, answer["error"]
    assert (written is None) == plan.kills_writer
    assert tuple(i for i, answer in enumerate(answers) if answer is None) == plan.victims
    living = [answer for answer in answers if answer is not None]
    for answer in living:
        assert answer["end"] == head, "not everything that was committed was received"
        assert written is None or answer["received"] == written["sent"]
    assert len({answer["received"] for answer in living}) <= 1
    if written is not None and living:
        assert written["got_through"]
        assert plan.kills or written["sent"] == plan.frames


def play_rounds(
    seed: int,
    rounds: int,
    job: str,
    doorbells: int,
    draw: Callable[[int, int], Any],
    play: Callable[[Any, DoorbellBoard], dict[str, int]],
) -> dict[str, Any]:
    """Play `rounds` rounds; return the sums of what happened."""
    totals: dict[str, int] = {}
    board = DoorbellBoard.create(doorbells, 0, job)
    descriptors = sorted(os.listdir("/proc/self/fd"))
    for number in range(rounds):
        plan = draw(seed, number)
        try:
            happened = play(plan, board)
            assert sorted(os.listdir("/proc/self/fd")) == descriptors
            assert not list(SHM_DIRECTORY.glob(f"whale-ray-{job}-*"))
        except AssertionError as error:
            error.add_note(f"replay: {plan.seed}\n{plan}")
            raise
        for name, value in happened.items():
            totals[name] = totals.get(name, 0) + value
    board.close()
    return {"seed": seed, "rounds": rounds, **totals}


if __name__ == "__main__":
    totals = play_rounds(*map(int, sys.argv[1:3]), JOB, READERS_MAX + 1, Round.draw, play)
    sys.stdout.write(json.dumps(totals) + "\n")
