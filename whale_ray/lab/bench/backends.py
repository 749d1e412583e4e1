"""Backends: transports of messages from one process to others, all measured by the same loop.

A sender repeats its prepared message for a fixed time, then ends; readers receive until the end. So
fast and slow backends need no message count chosen in advance, on an idle or a busy machine, and
the measured time includes the delivery of the last message to every reader.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol, TypeAlias

import numpy as np

from ...transport.channel import Channel, Outcome
from ...transport.clock import SystemClock
from ...transport.segment import Bytes
from .processes import Role, Work, run_together
from .report import median
from .ring_loops import sum_frame

_CLOCK: Final = SystemClock()
_CHUNK_BYTES: Final = 64 << 10
READ_FROM_BYTES: Final = 4 << 10
"""Readers read every word of messages of at least this size; smaller ones are only received."""


@dataclass(frozen=True, slots=True)
class MessageLoad:
    """Message size, number of readers and duration of a measurement."""

    nbytes: int
    """Size of one message."""
    readers: int
    duration_ns: int
    as_it_lies: bool = False
    """Whether the payload is neither written nor read: only the channel's own work is measured."""
    memory_bytes_min: int = 4 << 20

    @property
    def chunk(self) -> int:
        """Messages between two readings of the clock: 64 KiB in all, or one message."""
        return max(1, _CHUNK_BYTES // self.nbytes)

    @property
    def pump_bytes(self) -> int:
        """Bytes sent between two polls of the network: a quarter of a ring."""
        return self.memory_bytes // 4

    @property
    def memory_bytes(self) -> int:
        """Size of a ring: `memory_bytes_min`, or 8 messages if larger."""
        return max(self.memory_bytes_min, 8 * self.nbytes)

    def content(self) -> Bytes:
        """Return the prepared message."""
        return np.random.default_rng(0).integers(0, 256, self.nbytes, np.uint8)

    @property
    def consume(self) -> Callable[[Bytes], object]:
        """What a reader does with a message."""
        return sum_frame if self.nbytes >= READ_FROM_BYTES and not self.as_it_lies else len


class MessageSender(Protocol):
    """The sending side, in its own process."""

    def send(self, count: int) -> None:
        """Send the message `count` times to every reader; waits where there is no room."""
        ...

    def finish(self) -> None:
        """Send the end of the stream; wait until everything has been handed to the transport."""
        ...


ReceiveAll: TypeAlias = Callable[[], int]
"""Receives until the end of the stream; returns the number of messages."""


class Backend(AbstractContextManager["Backend"], Protocol):
    """One backend, created before the processes are forked; leaving its context cleans up."""

    def sender(self) -> MessageSender:
        """Return the sending side, in its own process, ready."""
        ...

    def receiver(self, reader: int) -> ReceiveAll:
        """Return one receiving side, in its own process, ready."""
        ...


@dataclass(frozen=True, slots=True)
class Measurement:
    """One measurement of one backend."""

    messages: int
    seconds: float
    sender_cpu_s: float
    readers_cpu_s: float
    """CPU seconds of all readers, and of processes that receive for them."""

    @property
    def rate(self) -> float:
        """Messages per second that every reader received."""
        return self.messages / self.seconds

    @property
    def cores(self) -> float:
        """CPU seconds of all processes per second."""
        return (self.sender_cpu_s + self.readers_cpu_s) / self.seconds


def measure_backend(backend: Backend, load: MessageLoad) -> Measurement:
    """Measure once; RuntimeError if a reader did not get as many messages as were sent."""

    def send() -> Work:
        return partial(_send_for, backend.sender(), load)

    roles: list[Role] = [send]
    roles += [partial(backend.receiver, reader) for reader in range(load.readers)]
    together = run_together(roles)
    sent, *received = (timing.result for timing in together.timings)
    if any(count != sent for count in received):
        msg = f"{type(backend).__name__}: {sent} messages were sent, {received} received"
        raise RuntimeError(msg)
    sender, *readers = (timing.cpu_ns for timing in together.timings)
    return Measurement(sent, together.wall_ns / 1e9, sender / 1e9, sum(readers) / 1e9)


Measurements: TypeAlias = Mapping[str, Sequence[Measurement]]
"""Name of the backend → measurements, with the same number of repetitions for all."""


def take_turns(
    samplers: Mapping[str, Callable[[MessageLoad], Measurement]],
    load: MessageLoad,
    repetitions: int,
) -> Measurements:
    """Measure all backends in turn, `repetitions` times."""
    samples: dict[str, list[Measurement]] = {name: [] for name in samplers}
    for _ in range(repetitions):
        for name, sample in samplers.items():
            samples[name].append(sample(load))
    return samples


def paired_ratio(samples: Measurements, name: str, against: str) -> float:
    """Return the median, over the repetitions, of the rate of `name` ÷ the rate of `against`."""
    pairs = zip(samples[name], samples[against], strict=True)
    return median([ours.rate / theirs.rate for ours, theirs in pairs])


def _send_for(sender: MessageSender, load: MessageLoad) -> int:
    end_ns = _CLOCK.monotonic_ns() + load.duration_ns
    sent, chunk = 0, load.chunk
    while not sent or _CLOCK.monotonic_ns() < end_ns:  # once even if the time is up already
        sender.send(chunk)
        sent += chunk
    sender.finish()
    return sent


def sample_copies(load: MessageLoad) -> Measurement:
    """Copy the message with one call each to successive places of a ring: memcpy."""
    content = load.content()
    places = np.zeros((load.memory_bytes // load.nbytes, load.nbytes), np.uint8)
    targets = list(places)
    start_ns = _CLOCK.monotonic_ns()
    copied, end_ns = 0, start_ns
    while not copied or end_ns < start_ns + load.duration_ns:
        for number in range(copied, copied + load.chunk):
            np.copyto(targets[number % len(targets)], content)
        copied += load.chunk
        end_ns = _CLOCK.monotonic_ns()
    seconds = (end_ns - start_ns) / 1e9
    return Measurement(copied, seconds, seconds, 0.0)


def _no_pump() -> bool:
    return False


def _delivered_at_once() -> bool:
    return True


@dataclass(frozen=True, slots=True)
class SendingSide:
    """A channel's sending end, and the functions with which its process drives it."""

    channel: Channel
    wait: Callable[[int], object]
    """Sleeps until there may be room for that many bytes, for a bounded time."""
    pump: Callable[[], object] = _no_pump
    """Moves bytes over the network, without waiting."""
    delivered: Callable[[], bool] = _delivered_at_once
    """Whether the network has delivered everything, after the channel was closed."""

    def put(self, nbytes: int, encode: Callable[[Bytes], int]) -> None:
        """Send one message; waits for room."""
        while (outcome := self.channel.put(nbytes, encode)) is not Outcome.SENT:
            if outcome is not Outcome.BACK_PRESSURED:
                msg = f"a message of {nbytes} bytes was refused: {outcome.value}"
                raise ValueError(msg)
            self.wait(nbytes)

    def finish(self) -> None:
        """Close the channel; returns when everything was delivered."""
        self.channel.close()
        self.pump()  # sends the end of the stream, even if everything before was delivered
        while not self.delivered():
            self.wait(0)


@dataclass(frozen=True, slots=True)
class ReceivingSide:
    """A channel's receiving end, and the functions with which its process drives it."""

    channel: Channel
    wait: Callable[[], object]
    """Sleeps until there may be a message or the end, for a bounded time."""
    pump: Callable[[], object] = _no_pump
    """Moves bytes over the network, without waiting; called at the end."""

    def receive(self, consume: Callable[[Bytes], object]) -> int:
        """Consume each message in place until the end; return how many there were."""
        channel, count = self.channel, 0
        while True:
            while (frame := channel.get()) is None:
                if channel.closed_by_peer:
                    self.pump()  # the sender waits for this acknowledgement
                    return count
                self.wait()
            consume(frame.data)
            channel.release_buffer(frame)
            count += 1


class ChannelSender:
    """Sends a prepared message through a channel: the encoder copies it into the channel."""

    def __init__(self, side: SendingSide, load: MessageLoad) -> None:
        """Send the message of `load` by `side`."""
        self._side = side
        self._content = load.content()
        self._copies = not load.as_it_lies
        self._not_pumped = 0
        self._pump_bytes = load.pump_bytes

    def _encode(self, buffer: Bytes) -> int:
        if self._copies:
            buffer[:] = self._content
        return buffer.size

    def send(self, count: int) -> None:
        """See `MessageSender.send`."""
        put, nbytes, encode = self._side.channel.put, self._content.size, self._encode
        for _ in range(count):
            if put(nbytes, encode) is not Outcome.SENT:
                self._side.put(nbytes, encode)
        self._not_pumped += count * nbytes
        if self._not_pumped >= self._pump_bytes:
            self._not_pumped = 0
            self._side.pump()

    def finish(self) -> None:
        """See `MessageSender.finish`."""
        self._side.finish()
