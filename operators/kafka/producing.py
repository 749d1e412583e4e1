"""Hands messages to a producer, and finds out whether all have arrived."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import confluent_kafka

    from .messages import MessageTable

__all__ = ["MessageWriter"]

_FULL_S = 0.05
_CALLBACKS_EVERY = 10_000
_FLUSH_S = 1.0


class MessageWriter:
    """Writes into one topic; the first message that could not be delivered is an error.

    Args:
        producer: which keeps as many messages as its queue has room for, and tries again.
        topic: where to.
    """

    def __init__(self, producer: confluent_kafka.Producer, topic: str) -> None:
        self._producer = producer
        self._topic = topic
        self._failed: Any = None

    def write(self, table: MessageTable) -> None:
        """Hand over messages; waits while the producer's queue is full.

        Raises:
            confluent_kafka.KafkaException: an earlier message could not be delivered.
        """
        produce, poll = self._producer.produce, self._producer.poll
        for number, message in enumerate(table.messages()):
            while True:
                try:
                    produce(self._topic, on_delivery=self._delivered, **message)
                    break
                except BufferError:
                    poll(_FULL_S)
                    self._raise_failure()
            if number % _CALLBACKS_EVERY == 0:
                poll(0)
        poll(0)
        self._raise_failure()

    def flush(self) -> None:
        """Wait until all messages are acknowledged; each is given up after `message.timeout.ms`.

        Raises:
            confluent_kafka.KafkaException: one could not be delivered.
        """
        while self._producer.flush(_FLUSH_S):
            self._raise_failure()
        self._raise_failure()

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None and self._failed is None:
            self._failed = error

    def _raise_failure(self) -> None:
        import confluent_kafka

        if self._failed is not None:
            raise confluent_kafka.KafkaException(self._failed)
