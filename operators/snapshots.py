"""What an operator keeps at an epoch, and what it is given back when a job resumes from there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    from ..transport.wire.batch import Batch
    from .sinks.cut_rows import CutRows

__all__ = ["OperatorSnapshot", "Position", "StateChunk", "Survivor"]

Position: TypeAlias = Mapping[str, Any]
"""Where a source's instance is in its input: values of JSON only, see `SourceReader.position`."""

_NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class StateChunk:
    """A part of an operator's state; never changes.

    Attributes:
        held: its rows, owned, in one batch or in several of one schema, which the thread that
            writes them puts together; or what makes them, anew at each call. It is called by the
            thread that writes snapshots, beside the running job: it must return what there was at
            the marker, until an epoch after it counts or the object goes back before it.
        identity: chunks of one operator object with the same identity hold the same rows, so that
            one that is in the store already is not written again; None: written in any case.
        waits: (port, producer's number on it) of rows that have not reached the operator yet, since
            they wait for event time; None for state.
    """

    held: Batch | Sequence[Batch] | Callable[[], Batch]
    identity: str | None = None
    waits: tuple[int, int] | None = None

    @property
    def rows(self) -> Batch:
        """The rows, with the key columns inside, as `Process.dump` returns them."""
        if callable(self.held):
            return self.held()
        if isinstance(self.held, Sequence):
            from ..transport.wire.batch import Batch

            return Batch.concat(self.held)
        return self.held


class Survivor(Protocol):
    """State in memory that goes back to the epoch of its snapshot once its object is gone.

    An object of the next attempt takes it over, see `Survives.take_over`.
    """

    def release(self) -> None:
        """Learn that the epoch counts: its chunks are in files, and nobody goes back before it."""


@dataclass(frozen=True)
class OperatorSnapshot:
    """What one operator object keeps at an epoch's marker.

    Attributes:
        operator_id: the operator.
        instances: those that the object serves.
        parallelism: of the operator.
        watermark_ns: what it has seen of event time.
        chunks: its state by virtual node (levels "declared" and "rows"), which another object can
            take in part; after it the rows that wait.
        values: what else it keeps, by name: picklable, and moves whole. Learnt columns, rows that
            wait, the attributes of an opaque operator.
        position: of a source.
        staged: what a sink's writer was given since the marker before, staged when it is written.
        survivor: the state itself, which outlives the object on its worker.
    """

    operator_id: str
    instances: tuple[int, ...]
    parallelism: int
    watermark_ns: int
    chunks: Sequence[StateChunk] = ()
    values: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)
    position: Position | None = None
    staged: CutRows | None = None
    survivor: Survivor | None = None
