"""Hands messages to a producer, and finds out whether all have arrived."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import confluent_kafka

    from .messages import MessageTable

__all__ = ["MessageWriter", "SentMessages"]

_FULL_S = 0.05
_CALLBACKS_EVERY = 10_000
_FLUSH_S = 0.05
"""How long a flush waits at once; one thread may flush while another one goes on writing."""
SILENT_S = 10.0
"""Brokers that have answered nothing for so long while somebody waits for them are told of."""


class SentMessages:
    """The messages between two cuts, and how many of them the brokers have not answered yet."""

    def __init__(self) -> None:
        self.count = 0
        self._answered = 0
        self._lock = Lock()  # any thread that polls the producer is told of answers

    @property
    def has_all_answers(self) -> bool:
        """Whether each message has arrived, or was given up; call it once the cut is made."""
        return self._answered >= self.count

    def note_answer(self) -> None:
        """Count an answer."""
        with self._lock:
            self._answered += 1


class _SilenceWatch:
    """Tells once that no broker answers, while one thread waits; again behind an answer."""

    def __init__(self, writer: MessageWriter) -> None:
        self._writer = writer
        self._answers = writer.answers
        self._silent_s = 0.0

    def note(self, waited_s: float) -> None:
        """Note that it has waited once more."""
        if self._answers != self._writer.answers:
            self._answers, self._silent_s = self._writer.answers, 0.0
        was_told = self._silent_s >= SILENT_S
        self._silent_s += waited_s
        if self._silent_s >= SILENT_S and not was_told:
            self._writer.on_silence()


class MessageWriter:
    """Writes into one topic; the first message that could not be delivered is an error.

    `write` and `cut` are for one thread, `wait` for any.

    Args:
        producer: which keeps as many messages as its queue has room for, and tries again.
        topic: where to.
        on_silence: called once brokers have answered nothing for `SILENT_S` while `write` or `wait`
            waits for them, and again behind an answer.

    Attributes:
        answers: how many messages have arrived, or were given up.
    """

    def __init__(
        self,
        producer: confluent_kafka.Producer,
        topic: str,
        on_silence: Callable[[], None] = lambda: None,
    ) -> None:
        self.on_silence = on_silence
        self.answers = 0
        self._producer = producer
        self._topic = topic
        self._failed: Any = None
        self._since_cut = SentMessages()

    def write(self, table: MessageTable) -> None:
        """Hand over messages; waits while the producer's queue is full.

        Raises:
            confluent_kafka.KafkaException: an earlier message could not be delivered.
        """
        produce, poll = self._producer.produce, self._producer.poll
        sent = self._since_cut
        on_delivery = partial(self._delivered, sent)
        for number, message in enumerate(table.messages()):
            waiting: _SilenceWatch | None = None
            while True:
                try:
                    produce(self._topic, on_delivery=on_delivery, **message)
                    sent.count += 1
                    break
                except BufferError:
                    poll(_FULL_S)
                    self._raise_failure()
                    waiting = waiting or _SilenceWatch(self)
                    waiting.note(_FULL_S)
            if number % _CALLBACKS_EVERY == 0:
                poll(0)
        poll(0)
        self._raise_failure()

    def cut(self) -> SentMessages:
        """Return the messages since the last call, for `wait`."""
        sent, self._since_cut = self._since_cut, SentMessages()
        return sent

    def wait(self, sent: SentMessages) -> None:
        """Wait until messages are acknowledged; each is given up after `message.timeout.ms`.

        Raises:
            confluent_kafka.KafkaException: one could not be delivered, maybe one before these.
        """
        waiting = _SilenceWatch(self)
        while not sent.has_all_answers:
            self._producer.flush(_FLUSH_S)
            self._raise_failure()
            waiting.note(_FLUSH_S)
        self._raise_failure()

    def flush(self) -> None:
        """Wait until all messages since the last cut are acknowledged; see `wait`."""
        self.wait(self.cut())

    def _delivered(self, sent: SentMessages, error: Any, message: Any) -> None:
        if error is not None and self._failed is None:
            self._failed = error
        self.answers += 1  # nobody counts on the exact number
        sent.note_answer()

    def _raise_failure(self) -> None:
        import confluent_kafka

        if self._failed is not None:
            raise confluent_kafka.KafkaException(self._failed)
