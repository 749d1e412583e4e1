"""Partitions of topics: which instance reads which, from where to where, and positions in JSON.

A partition belongs to the instance `(number of its topic + number of the partition) % parallelism`,
so new partitions never move those that are there, and any parallelism divides the same positions.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import index
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from ...configs.errors import InputError
from .topic_ids import ID

if TYPE_CHECKING:
    from ..snapshots import Position

__all__ = [
    "BEGINNING",
    "Partition",
    "Place",
    "Places",
    "checked_place",
    "owned",
    "position_of",
    "positions_in",
    "refuse_lost",
]

BEGINNING = -2
"""In the place of an offset: where the partition begins, whatever its retention has left."""

Place: TypeAlias = "Literal['earliest', 'latest'] | dt.datetime | Places"
"""Where to begin or to end in each partition."""


class Partition(NamedTuple):
    """A partition of a topic."""

    topic: str
    number: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.number}"


@dataclass(frozen=True)
class Places:
    """Offsets by partition, as a user has listed them."""

    offsets: Mapping[Partition, int]

    def of(self, partitions: Collection[Partition], name: str) -> dict[Partition, int]:
        """Return the offset of each partition that is there.

        Raises:
            InputError: one is missing, or one too many.
        """
        missing = sorted(set(partitions) - self.offsets.keys())
        unknown = sorted(self.offsets.keys() - set(partitions))
        if missing or unknown:
            what = f"names no offset for {missing[0]}" if missing else f"names {unknown[0]}"
            hint = "name every partition" if missing else "it is not there; leave it out"
            msg = f"{name}= of the Kafka source {what}; {hint}"
            raise InputError(msg)
        return dict(self.offsets)


def checked_place(given: Any, topics: Sequence[str], name: str) -> Place:
    """Check where a user wants to begin or to end.

    Raises:
        InputError: it is none of what `Place` lists, or a time without a zone.
    """
    if given == "earliest" or given == "latest":  # noqa: PLR1714  mypy narrows the type so
        return given
    if isinstance(given, dt.datetime):
        if given.tzinfo is None:
            msg = f"{name}={given!r} has no time zone; write datetime(…, tzinfo=timezone.utc)"
            raise InputError(msg)
        return given
    if isinstance(given, Mapping):
        by_topic = given
        if len(topics) == 1 and not any(isinstance(value, Mapping) for value in given.values()):
            by_topic = {topics[0]: given}
        try:
            return Places(
                {
                    Partition(topic, _whole(number)): _whole(offset)
                    for topic, offsets in by_topic.items()
                    for number, offset in offsets.items()
                }
            )
        except (AttributeError, TypeError, ValueError):
            pass  # told below
    msg = (
        f"{name}={given!r} is no place in a topic; pass 'earliest', 'latest', a datetime with a "
        "time zone, or offsets as {partition: offset} or {topic: {partition: offset}}"
    )
    raise InputError(msg)


def _whole(given: Any) -> int:
    """Return a number of a partition, or an offset; TypeError or ValueError if it is none."""
    found = int(given) if isinstance(given, str) else index(given)
    if found < 0 or isinstance(given, bool):
        msg = "negative, or a truth value"
        raise ValueError(msg)
    return found


def owned(
    partitions: Iterable[Partition], topics: Sequence[str], instance: int, parallelism: int
) -> list[Partition]:
    """Return the partitions that an instance reads, in order."""
    numbers = {topic: number for number, topic in enumerate(topics)}
    return sorted(
        one for one in partitions if (numbers[one.topic] + one.number) % parallelism == instance
    )


def position_of(
    offsets: Mapping[Partition, int], ids: Mapping[str, str] = MappingProxyType({})
) -> Position:
    """Return the next offset of each partition, and ids of topics, as JSON.

    Such as `{"orders": {"0": 17, "id": "t1Yr5qRkT6OoTWAYsHlLrw"}}`.
    """
    position: dict[str, dict[str, int | str]] = {}
    for partition, offset in sorted(offsets.items()):
        position.setdefault(partition.topic, {})[str(partition.number)] = offset
    for topic in position.keys() & ids.keys():
        position[topic][ID] = ids[topic]
    return position


def positions_in(positions: Iterable[Position], topics: Sequence[str]) -> dict[Partition, int]:
    """Return the offsets of all instances' positions together.

    Raises:
        InputError: they are of a topic that is not read any more, or not of a Kafka source.
    """
    offsets: dict[Partition, int] = {}
    for position in positions:
        for topic, numbers in position.items():
            if topic not in topics:
                msg = (
                    f"the checkpoint's positions are of the Kafka topic {topic!r}, which the "
                    f"source does not read any more (it reads {', '.join(topics)}); read it, or "
                    "give the source another id, under which it begins anew"
                )
                raise InputError(msg)
            for number, offset in numbers.items():
                if number != ID:
                    offsets[Partition(topic, int(number))] = int(offset)
    return offsets


def refuse_lost(read: Collection[Partition], found: Collection[Partition]) -> None:
    """Raise InputError if a partition that is read is not found: a topic never loses one.

    The client would wait for it without a word.
    """
    lost = sorted(set(read) - set(found))
    if lost:
        msg = (
            f"topic {lost[0].topic!r} has no partition {lost[0].number} any more, which this"
            " job reads: the topic was created anew, so the job's offsets are not those of its"
            " messages. Submit the job with another folder of checkpoints, to read it from its"
            " start"
        )
        raise InputError(msg)
