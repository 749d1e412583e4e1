"""Doorbells, on which workers sleep, and the watermarks that sources publish.

A worker that finds nothing to do sleeps on one doorbell for all that it waits for: frames in its
inbound rings, room in an outbound one, a command from its control thread. A process or thread that
changes one of these rings the doorbell; while the owner is awake, that costs one load.

One board per job and attempt, made by one worker and attached by the others::

    byte 0      segment header (segment.py)
       128      doorbell of worker 0:    ring count | sleeping | zero
       256      doorbell of worker 1
       ...
                watermark of slot 0:     int64 ns | zero
                watermark of slot 1
       ...

Each line is 128 bytes: two cache lines of 64, which processors fetch in pairs, or one of 128.

No ring is lost: the sleeper reads the count, sets its sleeping flag, then checks once more for
work; the ringer publishes its work, then checks the flag. With a full fence between the two steps
on both sides, at least one of them sees the other. The kernel puts the sleeper to sleep only if
the count is still the one it read. A ringer that is killed between clearing the flag and waking
delays the sleeper until its timeout, no longer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from .atomics import (
    add,
    exchange,
    fence,
    futex_wait,
    futex_wake,
    inner,
    kernel,
    load,
    load_acquire,
    pause,
    store,
    store_release,
)
from .handles import BoardHandle
from .segment import SEGMENT_HEADER_BYTES, Segment, SegmentKind, Words

LINE_BYTES: Final = 128
NO_WATERMARK_NS: Final = -(1 << 63)
"""The watermark of a source that has not published one yet."""
LAST_WATERMARK_NS: Final = (1 << 63) - 1
"""The watermark of a source that has ended."""

_COUNT = 0
_SLEEPING = 8
_EVERYBODY = 1 << 30


@inner
def ring_line(line: int) -> None:
    """Wake the owner of the doorbell at address `line` if it sleeps; the caller has fenced."""
    # The exchange lets one of several ringers through, so that a sleeper costs one system call.
    if load(line + _SLEEPING) != 0 and exchange(line + _SLEEPING, 0) != 0:
        add(line + _COUNT, 1)
        futex_wake(line + _COUNT, _EVERYBODY)


@kernel("void(int64)")
def _fence_and_ring(line: int) -> None:
    fence()
    ring_line(line)


@kernel("int64(int64)")
def _announce_sleep(line: int) -> int:
    count = load_acquire(line + _COUNT)
    store(line + _SLEEPING, 1)
    fence()
    return count


@kernel("boolean(int64, int64, int64)", releases_gil=True)
def _sleep(line: int, count: int, timeout_ns: int) -> bool:
    """Sleep; return whether the doorbell was rung, possibly for an earlier sleep."""
    woken = futex_wait(line + _COUNT, count, timeout_ns) == 0
    return woken or load_acquire(line + _COUNT) != count


@kernel("void(int64, int64, int64, int64)", releases_gil=True)
def _spin_and_sleep(line: int, count: int, pauses: int, timeout_ns: int) -> None:
    for _ in range(pauses):
        if load_acquire(line + _COUNT) != count:
            return
        pause()
    futex_wait(line + _COUNT, count, timeout_ns)


@kernel("void(int64)")
def _stay_awake(line: int) -> None:
    store_release(line + _SLEEPING, 0)


@kernel("void(int64)", releases_gil=True)
def _spin(pauses: int) -> None:
    for _ in range(pauses):
        pause()


@kernel("void(int64, int64)")
def _publish(address: int, value: int) -> None:
    store_release(address, value)


@kernel("int64(int64)")
def _read(address: int) -> int:
    return load_acquire(address)


@kernel("int64(int64, int64)")
def _minimum(first_line: int, count: int) -> int:
    lowest = load_acquire(first_line)
    for slot in range(1, count):
        lowest = min(lowest, load_acquire(first_line + slot * LINE_BYTES))
    return lowest


class Doorbell:
    """One worker's doorbell. Any thread may ring, one at a time may wait."""

    __slots__ = ("_words", "line", "spin_pauses")

    def __init__(self, words: Words, spin_pauses: int) -> None:
        """Use `DoorbellBoard.doorbell` or `Doorbell.private` instead."""
        # The view keeps the memory mapped: a thread may ring after the board was closed.
        self._words = words
        self.line: Final = int(words.ctypes.data)
        """The address of its line, for compiled code."""
        self.spin_pauses: Final = spin_pauses

    @classmethod
    def private(cls) -> Doorbell:
        """Return a doorbell that only this process can use."""
        board = DoorbellBoard.create(1, 0, "private", kind="private")
        return board.doorbell(0)

    def ring(self) -> None:
        """Wake the owner if it sleeps, or is about to; callable from any thread."""
        _fence_and_ring(self.line)

    def wait(self, timeout_ns: int, ready: Callable[[], bool]) -> bool:
        """Sleep until rung, for at most `timeout_ns`; return True unless the time was up.

        Returns at once while `ready()` is true: it must check everything whose change rings this
        doorbell. Spins for at most `spin_pauses` before it sleeps; without spinning, it checks
        once, and not again when the time is up: these checks are the main cost of frequent
        wake-ups. The GIL is released meanwhile; a signal ends the sleep as the timeout does.
        """
        if self.spin_pauses > 0:
            if ready():
                return True
            _spin(self.spin_pauses)
            if ready():
                return True
        count = _announce_sleep(self.line)
        try:
            if ready():
                return True
            return bool(_sleep(self.line, count, timeout_ns))
        finally:
            _stay_awake(self.line)

    def rest(self, turn: Callable[[], int]) -> None:
        """Take a turn, then sleep until rung, for at most the ns that `turn` returns; 0: do not.

        The sleep is announced before the turn: a ring during the turn ends the sleep at once. So a
        turn that has done all its work need not check again. Spins for at most `spin_pauses` before
        it sleeps. The GIL is released meanwhile; a signal ends the sleep, too.
        """
        count = _announce_sleep(self.line)
        try:
            timeout_ns = turn()
            if timeout_ns > 0:
                _spin_and_sleep(self.line, count, self.spin_pauses, timeout_ns)
        finally:
            _stay_awake(self.line)


class DoorbellBoard:
    """The doorbells of a job's workers and the watermarks of its source instances."""

    def __init__(self, segment: Segment, workers: int, watermark_slots: int) -> None:
        """Take over a segment; internal, see `create` and `attach`."""
        self._segment = segment
        self.workers: Final = workers
        self.watermark_slots: Final = watermark_slots
        # Kept after `close`, so that no late caller meets unmapped memory.
        self._lines = segment.words(SEGMENT_HEADER_BYTES, segment.handle.size)
        self._watermarks = segment.address + SEGMENT_HEADER_BYTES + workers * LINE_BYTES

    @classmethod
    def create(
        cls, workers: int, watermark_slots: int, job: str, kind: SegmentKind = "memfd"
    ) -> DoorbellBoard:
        """Create the board of a job: nobody sleeps and no source has a watermark yet."""
        nbytes = SEGMENT_HEADER_BYTES + (workers + watermark_slots) * LINE_BYTES
        segment = Segment.create(nbytes, "doorbells", job, kind)
        board = cls(segment, workers, watermark_slots)
        for slot in range(watermark_slots):
            board.set_watermark(slot, NO_WATERMARK_NS)
        return board

    @classmethod
    def attach(cls, handle: BoardHandle) -> DoorbellBoard:
        """Attach the board that another worker created; ResourceError if it has vanished."""
        return cls(Segment.attach(handle.segment), handle.workers, handle.watermark_slots)

    @property
    def handle(self) -> BoardHandle:
        """What other workers attach with."""
        return BoardHandle(self._segment.handle, self.workers, self.watermark_slots)

    def doorbell(self, worker: int, spin_pauses: int = 0) -> Doorbell:
        """Return the doorbell of a worker, to wait on (if it is one's own) or to ring."""
        _check_index("worker", worker, self.workers)
        first = worker * LINE_BYTES // 8
        return Doorbell(self._lines[first : first + LINE_BYTES // 8], spin_pauses)

    def set_watermark(self, slot: int, watermark_ns: int) -> None:
        """Publish the watermark of a source instance, in ns since 1970-01-01 UTC."""
        _check_index("watermark slot", slot, self.watermark_slots)
        _publish(self._watermarks + slot * LINE_BYTES, watermark_ns)

    def watermark(self, slot: int) -> int:
        """Return the last published watermark of a source instance, in ns."""
        _check_index("watermark slot", slot, self.watermark_slots)
        return int(_read(self._watermarks + slot * LINE_BYTES))

    def min_watermark(self) -> int:
        """Return the lowest watermark of all slots, in ns; LAST_WATERMARK_NS without slots."""
        if self.watermark_slots == 0:
            return LAST_WATERMARK_NS
        return int(_minimum(self._watermarks, self.watermark_slots))

    def close(self) -> None:
        """Give the board back; it is unmapped once its last doorbell is gone too."""
        self._segment.close()


def _check_index(name: str, index: int, count: int) -> None:
    if not 0 <= index < count:
        msg = f"{name} {index} is not on the board, which has {count}"
        raise IndexError(msg)
