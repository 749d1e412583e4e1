"""A ring with its doorbells for a measurement, and the sides of most measurements."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import count as count_up

from ...transport.channel import Encode, Outcome
from ...transport.doorbell import DoorbellBoard
from ...transport.ring import RingConsumer
from ...transport.segment import Bytes
from ...transport.shm import attach_ring, create_ring
from .processes import ClosedAtExit, Role, Work

DEFAULT_RING_BYTES = 4 << 20
_TIMEOUT_NS = 50_000_000
_PAGE_BYTES = 4096
_NUMBERS = count_up()


class RingPair(ClosedAtExit):
    """A ring that the roles of one measurement share; created before they are forked.

    The sender uses `producer`, the readers attach in their own process with `consumer`.
    """

    def __init__(
        self, readers: int = 1, ring_bytes: int = DEFAULT_RING_BYTES, spin_pauses: int = 100
    ) -> None:
        """Create the ring; no process spins where the processes outnumber the cores."""
        if readers + 1 > len(os.sched_getaffinity(0)):
            spin_pauses = 0
        job = f"bench{os.getpid()}-{next(_NUMBERS)}"
        self._board = DoorbellBoard.create(readers + 1, 0, job)
        self._doorbells = [self._board.doorbell(w, spin_pauses) for w in range(readers + 1)]
        self.producer, self._handle = create_ring(
            ring_bytes, readers, job, "ring", self._doorbells[:readers]
        )

    def close(self) -> None:
        """Release the memory; a reader that has attached keeps it."""
        self.producer.close()
        self._board.close()

    def consumer(self, reader: int = 0) -> RingConsumer:
        """Attach a reader, in its own process."""
        return attach_ring(self._handle, reader, self._doorbells[-1])

    def touch(self) -> None:
        """Map the ring's pages in this process: a fork leaves that to the first access."""
        self.producer.segment.buffer[::_PAGE_BYTES].sum()

    def wait_for_room(self, nbytes: int) -> None:
        """Sleep, as the sender, until a frame of `nbytes` fits."""
        producer = self.producer
        self._doorbells[-1].wait(
            _TIMEOUT_NS, lambda: producer.ready_to_send(nbytes) is Outcome.SENT
        )

    def wait_for_frame(self, consumer: RingConsumer, reader: int = 0) -> None:
        """Sleep, as a reader, until there is a frame."""
        self._doorbells[reader].wait(_TIMEOUT_NS, consumer.available)

    def sender(self, message: Callable[[int], tuple[int, Encode]], count: int) -> Role:
        """Return a role that sends `count` messages; `message` gives their bytes and encoder."""

        def send() -> Work:
            producer = self.producer
            self.touch()

            def work() -> None:
                for number in range(count):
                    nbytes, encode = message(number)
                    while (outcome := producer.put(nbytes, encode)) is not Outcome.SENT:
                        if outcome is not Outcome.BACK_PRESSURED:
                            msg = f"a frame of {nbytes} bytes was refused: {outcome.value}"
                            raise ValueError(msg)
                        self.wait_for_room(nbytes)

            return work

        return send

    def receiver(self, consume: Callable[[Bytes], object], count: int, reader: int = 0) -> Role:
        """Return a role that receives `count` frames and consumes each in place."""

        def receive() -> Work:
            consumer = self.consumer(reader)

            def work() -> None:
                for _ in range(count):
                    while (frame := consumer.get()) is None:
                        self.wait_for_frame(consumer, reader)
                    consume(frame.data)
                    consumer.release_buffer(frame)

            return work

        return receive
