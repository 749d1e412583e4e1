"""The interface of custom transports: a sender and a receiver operator (Vega III, IV).

Rows that leave a process are cut into *messages*, whose content the transport does not interpret. A
`Sender` sends them from one process to one `Receiver`, which receives those of all senders of its
edge: several outputs joined to one input are polled by one operator. Both have Vega's calls, which
never block:

=================  ==========================================================================
sender             ``ready_to_send()``: is there room for a message? ``put(message)``: send it
receiver           ``available()``: has one come? ``get()``: take it, in place if that can be;
                   ``release_buffer(buffer)``: its memory may be used again
=================  ==========================================================================

A transport must deliver every message whole and once, those of one sender in order; the messages of
several senders may mix. Messages lost, repeated, reordered or cut are detected and end the job with
an error that names the transport. Back-pressure, fragments, watermarks and the end of a stream are
handled by whale-ray.

An exception of an operator ends the job, with three exceptions: BlockingIOError of `put` or `get`
means "not now", and nothing was sent or taken; ConnectionError of any call means that the other
side is gone, and the job restarts if it may, as after the death of a worker; one of `close` is
logged as a warning. The content of messages is not checked unless `transport.checksum` is set:
without it, changed bytes may remain undetected.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from ...configs.errors import TopologyError

MESSAGE_BYTES_MIN: Final = 64
MESSAGE_BYTES_MAX: Final = 16 * 1024 * 1024
QUEUE_LENGTH_MAX: Final = 65_536

Buffer: TypeAlias = bytes | bytearray | memoryview
"""Received bytes: any contiguous object with Python's buffer interface."""


@dataclass(frozen=True)
class TransportContext:
    """Which sender or receiver an operator is, and the tunables of its transport.

    Attributes:
        transport: the transport's name.
        job_id: unique for the job, and usable as a file name.
        attempt: 0 at the first start of the job, one more after each restart; messages that an
            earlier attempt left in the transport need not be delivered, and are dropped otherwise.
        edge: the number of the edge, as `explain` shows it.
        source_operator: the id of the operator that the sender is fused with.
        target_operator: the id of the operator that the receiver is fused with.
        senders: the workers that send to this receiver, ascending: the fan-in group.
        sender: the worker of this sender; None in a receiver.
        receiver: the worker of the receiver.
        message_bytes: the largest message that `put` is given.
        queue_length: how many messages may wait between one sender and the receiver.
    """

    transport: str
    job_id: str
    attempt: int
    edge: int
    source_operator: str
    target_operator: str
    senders: tuple[int, ...]
    sender: int | None
    receiver: int
    message_bytes: int
    queue_length: int

    def describe(self) -> str:
        """Return the operator's name in messages."""
        edge = f"{self.source_operator!r} → {self.target_operator!r}"
        if self.sender is None:
            return f"transport {self.transport!r}, receiver of {edge} in worker {self.receiver}"
        ends = f"from worker {self.sender} to worker {self.receiver}"
        return f"transport {self.transport!r}, sender of {edge} {ends}"


class Sender(ABC):
    """The sending operator of a transport: from one process to one receiver."""

    @abstractmethod
    def open(self, context: TransportContext, address: Any) -> None:
        """Connect to the receiver, which is open; `address` is what its `open` returned."""

    @abstractmethod
    def ready_to_send(self) -> bool:
        """Return whether there is room for one message of `context.message_bytes`."""

    @abstractmethod
    def put(self, message: memoryview) -> None:
        """Send a message, of up to `context.message_bytes`; called only when there was room.

        The memory belongs to whale-ray and is overwritten after the call.
        """

    def statistics(self) -> Mapping[str, int]:
        """Return counters of its own for the job's metrics; may be called from another thread."""
        return {}

    def close(self) -> None:
        """Release everything; messages that were put still arrive.

        Called once, also if `open` has failed.
        """


class Receiver(ABC):
    """The receiving operator of a transport: for all senders of an edge to one process."""

    @abstractmethod
    def open(self, context: TransportContext) -> Any:
        """Prepare to receive; return the address to open senders with (picklable)."""

    @abstractmethod
    def available(self) -> bool:
        """Return whether `get` would find a message."""

    @abstractmethod
    def get(self) -> Buffer | None:
        """Return the next message, exactly as it was put, or None if there is none now.

        Its bytes must stay as they are until it is released.
        """

    @abstractmethod
    def release_buffer(self, buffer: Buffer) -> None:
        """Release a buffer, the same object that `get` returned; in the order of `get`, each once.

        Several may be unreleased at a time, as operators may keep views. The sender may be closed.
        """

    def statistics(self) -> Mapping[str, int]:
        """Return counters of its own for the job's metrics; may be called from another thread."""
        return {}

    def close(self) -> None:
        """Release everything. Called once, also if `open` has failed."""


@dataclass(frozen=True)
class Transport:
    """A custom transport: its two operators and Vega's tunables.

    The planner puts a sender and a receiver on every edge that has this transport, between any two
    processes that exchange rows; within a process rows need no transport.

    Attributes:
        name: its name in messages, metrics and `explain`.
        sender: a class derived from `Sender`, or a function without arguments that makes one.
        receiver: the same for `Receiver`.
        message_bytes: the largest message in bytes, from 64 to 16 MiB; larger frames are sent as
            several messages, which the receiver puts together again.
        queue_length: how many messages may wait between a sender and its receiver, from 2 to
            65,536; both operators get it in their context, and the sender must keep to it.
        mutex: whether calls of one operator exclude each other. The worker's loop makes all calls
            except `statistics`, which another thread makes; without the mutex, the operator must
            be safe for that.

    Raises:
        TopologyError: an argument is invalid.
    """

    name: str
    sender: Callable[[], Sender]
    receiver: Callable[[], Receiver]
    message_bytes: int = 64 * 1024
    queue_length: int = 128
    mutex: bool = True

    def __post_init__(self) -> None:
        """Check everything."""
        if not isinstance(self.name, str) or not self.name.isprintable() or not self.name.strip():
            msg = f"a transport's name is {self.name!r}: pass a text such as 'unix-sockets'"
            raise TopologyError(msg)
        self._check_operator("sender", self.sender, Sender)
        self._check_operator("receiver", self.receiver, Receiver)
        self._check_range("message_bytes", self.message_bytes, MESSAGE_BYTES_MIN, MESSAGE_BYTES_MAX)
        self._check_range("queue_length", self.queue_length, 2, QUEUE_LENGTH_MAX)
        if not isinstance(self.mutex, bool):
            msg = f"transport {self.name!r}: mutex is {self.mutex!r}: pass True or False"
            raise TopologyError(msg)

    def _check_operator(self, role: str, made_by: object, wanted: type) -> None:
        derived = f"pass a class derived from whale.transports.{wanted.__name__}"
        if isinstance(made_by, wanted):
            msg = (
                f"transport {self.name!r}: {role} is an object, but each process needs its own:"
                f" {derived}, or a function that makes one"
            )
        elif not callable(made_by):
            msg = f"transport {self.name!r}: {role} is {made_by!r}: {derived}"
        elif isinstance(made_by, type) and not issubclass(made_by, wanted):
            msg = f"transport {self.name!r}: {role} is the class {made_by.__name__}: {derived}"
        elif missing := ", ".join(sorted(getattr(made_by, "__abstractmethods__", ()))):
            name = getattr(made_by, "__name__", role)
            msg = f"transport {self.name!r}: {role} {name} does not define {missing}"
        else:
            return
        raise TopologyError(msg)

    def _check_range(self, what: str, value: object, low: int, high: int) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            msg = (
                f"transport {self.name!r}: {what} is {value!r}: pass a whole number from"
                f" {low:,} to {high:,}"
            )
            raise TopologyError(msg)

    def describe(self) -> str:
        """Return its tunables in a few words."""
        mutex = "mutex" if self.mutex else "no mutex"
        return f"messages of {self.message_bytes:,} B, queues of {self.queue_length:,}, {mutex}"
