"""How rows are committed exactly once by Kafka's transactions. Pure: steps that a port carries out.

The rows of an epoch wait in the checkpoint until it counts; then they are written in one
transaction, together with a *record* of the commit: the epoch, as the offset of a consumer group
that belongs to the job and the sink. Rows and record become visible together or not at all, so
whoever repeats a commit reads the record and knows whether it was done::

    Initialise          fences other producers of the transactional id, ends what they left
    ReadRecord          the last epoch that was committed; waits for offsets not decided yet
                        ── that epoch or a later one? then there is nothing to do
    Write               the rows
    Record              the epoch
    CommitTransaction   both become visible

The order of the first two is what makes it right: once `Initialise` has returned, no transaction of
another producer of the id can still be committed, so what `ReadRecord` returns stays true. Any
error ends the commit without a verdict, also one that leaves open whether something was done; the
next try begins with `Initialise` anew, with another producer. All who may commit the same epoch,
now or after a restart, must use the same transactional id, and no two sinks may.

Why not prepare a transaction at the marker, and commit it once the epoch counts? A producer that
has died cannot be replaced by one that commits what it has prepared: the new one aborts it. (Flink
resumes a transaction by the producer's id and epoch, through the Java client's internals, which
librdkafka lacks; KIP-939 will make it an operation of the protocol.) And brokers abort what stays
open longer than `transaction.timeout.ms`, whose rows are then lost, however long the job was down.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

IfUnknown: TypeAlias = Literal["fail", "write", "skip"]
"""What to do if there is no record, so that nobody knows whether the commit was done before."""

__all__ = [
    "CommitTransaction",
    "IfUnknown",
    "Initialise",
    "ReadRecord",
    "Record",
    "RecordGoneError",
    "Step",
    "Write",
    "commit_steps",
]


@dataclass(frozen=True)
class Initialise:
    """Fence all other producers of the id, and wait until their transactions have ended."""


@dataclass(frozen=True)
class ReadRecord:
    """Answer the epoch that was recorded last, None if there is no record."""


@dataclass(frozen=True)
class Write:
    """Begin a transaction, and write rows into it; all are acknowledged."""

    rows: Any


@dataclass(frozen=True)
class Record:
    """Record an epoch in the transaction."""

    epoch: int


@dataclass(frozen=True)
class CommitTransaction:
    """Commit the transaction."""


Step: TypeAlias = Initialise | ReadRecord | Write | Record | CommitTransaction


class RecordGoneError(Exception):
    """There is no record, so nobody knows whether the commit was done before."""


def commit_steps(
    epoch: int, rows: Any, if_unknown: IfUnknown = "fail"
) -> Generator[Step, int | None, bool]:
    """Yield the steps of a commit; take the answer to each, and return whether rows were written.

    Args:
        epoch: its number; later commits of a sink have higher ones.
        rows: what is written.
        if_unknown: if there is no record: "fail", "write" the rows (right for the first commit,
            else maybe again), or "skip" them.

    Raises:
        RecordGoneError: there is no record: the brokers have forgotten it.
    """
    yield Initialise()
    recorded = yield ReadRecord()
    if recorded is None and if_unknown == "fail":
        raise RecordGoneError
    if recorded is not None and recorded >= epoch:
        return False
    yield Write(() if recorded is None and if_unknown == "skip" else rows)
    yield Record(epoch)
    yield CommitTransaction()
    return True
