"""Lanes: ways to move messages from one process to others, all measured by the same loop.

A sender sends its prepared message again and again for a fixed time, then ends; readers receive
until the end. So the figures of fast and slow ways, on a quiet or a loaded machine, need no counts
chosen in advance, and what the sender sent last counts only when every reader has it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Final, Protocol, Self, TypeAlias

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
"""Readers read every word of messages of this size and above; smaller ones they only receive."""


@dataclass(frozen=True, slots=True)
class Load:
    """What is sent, to how many, and for how long."""

    nbytes: int
    """Of one message."""
    readers: int
    duration_ns: int
    as_it_lies: bool = False
    """Whether neither side of a channel touches the bytes: they are moved as they lie there."""
    memory_bytes_min: int = 4 << 20

    @property
    def chunk(self) -> int:
        """Messages between two looks at the clock: of 64 KiB in all, or one."""
        return max(1, _CHUNK_BYTES // self.nbytes)

    @property
    def pump_bytes(self) -> int:
        """Put between two looks at the network, where there is room: a quarter of a ring."""
        return self.memory_bytes // 4

    @property
    def memory_bytes(self) -> int:
        """Of a ring, or of all push slots: the least, or 8 messages where these are more."""
        return max(self.memory_bytes_min, 8 * self.nbytes)

    def content(self) -> Bytes:
        """Return the prepared message."""
        return np.random.default_rng(0).integers(0, 256, self.nbytes, np.uint8)

    @property
    def consume(self) -> Callable[[Bytes], object]:
        """What a reader does with a message."""
        return sum_frame if self.nbytes >= READ_FROM_BYTES and not self.as_it_lies else len


class Sender(Protocol):
    """The sending side, in its own process."""

    def send(self, count: int) -> None:
        """Send the message `count` times to every reader; waits where there is no room."""
        ...

    def finish(self) -> None:
        """Tell the readers that nothing follows; waits until all is on its way."""
        ...


Receive: TypeAlias = Callable[[], int]
"""Receives until the end; returns how many messages there were."""


class Lane(AbstractContextManager["Lane"], Protocol):
    """One way, made before the processes are forked; as a context it cleans up."""

    def sender(self) -> Sender:
        """Return the sending side, in its own process, ready."""
        ...

    def receiver(self, reader: int) -> Receive:
        """Return one receiving side, in its own process, ready."""
        ...


class ClosingLane:
    """A lane that calls its own `close` at the end."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give back what was made before the fork."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement of one way."""

    messages: int
    seconds: float
    sender_cpu_s: float
    readers_cpu_s: float
    """Of all readers, and of what receives for them."""

    @property
    def rate(self) -> float:
        """Messages per second, which every reader got."""
        return self.messages / self.seconds

    @property
    def cores(self) -> float:
        """CPU seconds of all processes per second."""
        return (self.sender_cpu_s + self.readers_cpu_s) / self.seconds


def sample_lane(lane: Lane, load: Load) -> Sample:
    """Measure once; RuntimeError if a reader got another number of messages than were sent."""

    def send() -> Work:
        return partial(_send_for, lane.sender(), load)

    roles: list[Role] = [send]
    roles += [partial(lane.receiver, reader) for reader in range(load.readers)]
    together = run_together(roles)
    sent, *received = (timing.result for timing in together.timings)
    if any(count != sent for count in received):
        msg = f"{type(lane).__name__}: {sent} messages were sent, {received} received"
        raise RuntimeError(msg)
    sender, *readers = (timing.cpu_ns for timing in together.timings)
    return Sample(sent, together.wall_ns / 1e9, sender / 1e9, sum(readers) / 1e9)


Samples: TypeAlias = Mapping[str, Sequence[Sample]]
"""By way; of equally many repetitions."""


def take_turns(
    ways: Mapping[str, Callable[[Load], Sample]], load: Load, repetitions: int
) -> Samples:
    """Measure the ways in turn, and that several times."""
    samples: dict[str, list[Sample]] = {way: [] for way in ways}
    for _ in range(repetitions):
        for way, sample in ways.items():
            samples[way].append(sample(load))
    return samples


def paired_ratio(samples: Samples, way: str, against: str) -> float:
    """Return the median of how many times the rate of `against` that of `way` is."""
    pairs = zip(samples[way], samples[against], strict=True)
    return median([ours.rate / theirs.rate for ours, theirs in pairs])


def _send_for(sender: Sender, load: Load) -> int:
    end_ns = _CLOCK.monotonic_ns() + load.duration_ns
    sent, chunk = 0, load.chunk
    while not sent or _CLOCK.monotonic_ns() < end_ns:  # once even if the time is up already
        sender.send(chunk)
        sent += chunk
    sender.finish()
    return sent


def sample_copies(load: Load) -> Sample:
    """Copy the message, a call each, to places that go round as in the ring: memcpy."""
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
    return Sample(copied, seconds, seconds, 0.0)


def _no_pump() -> bool:
    return False


def _delivered_at_once() -> bool:
    return True


@dataclass(frozen=True, slots=True)
class SendingSide:
    """A channel's sending end, and how its process keeps it going."""

    channel: Channel
    wait: Callable[[int], object]
    """Sleeps until so many bytes may find room, but not for long."""
    pump: Callable[[], object] = _no_pump
    """Moves bytes over the network, without waiting."""
    delivered: Callable[[], bool] = _delivered_at_once
    """Whether, after the channel was closed, the network has delivered everything."""

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
        self.pump()  # says so, even if everything before was delivered
        while not self.delivered():
            self.wait(0)


@dataclass(frozen=True, slots=True)
class ReceivingSide:
    """A channel's receiving end, and how its process keeps it going."""

    channel: Channel
    wait: Callable[[], object]
    """Sleeps until there may be a message or the end, but not for long."""
    pump: Callable[[], object] = _no_pump
    """Moves bytes over the network, without waiting; called at the end."""

    def receive(self, consume: Callable[[Bytes], object]) -> int:
        """Consume each message in place until the end; return how many there were."""
        channel, count = self.channel, 0
        while True:
            while (frame := channel.get()) is None:
                if channel.closed_by_peer:
                    self.pump()  # the sender waits to hear that all is here
                    return count
                self.wait()
            consume(frame.data)
            channel.release_buffer(frame)
            count += 1


class ChannelSender:
    """Sends a prepared message through a channel: the encoder copies it into the channel."""

    def __init__(self, side: SendingSide, load: Load) -> None:
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
        """See `Sender.send`."""
        put, nbytes, encode = self._side.channel.put, self._content.size, self._encode
        for _ in range(count):
            if put(nbytes, encode) is not Outcome.SENT:
                self._side.put(nbytes, encode)
        self._not_pumped += count * nbytes
        if self._not_pumped >= self._pump_bytes:
            self._not_pumped = 0
            self._side.pump()

    def finish(self) -> None:
        """See `Sender.finish`."""
        self._side.finish()
