"""Aligns the markers of an epoch at one stage of one worker.

An epoch's marker divides each stream into what belongs to the snapshot and what follows. A stage
takes its snapshot once every input has come to the marker; an input that is there earlier waits,
so that no row after the marker is in the snapshot (Rhino, section 3.4; aligned checkpoints).

Producers of one worker share a ring, and each writes a marker of its own. A ring has come to the
marker when all of its producers have. Until then, none that has written its marker may write rows:
they would lie before the markers of the others, and the reader, which cannot skip frames, would
take them into the snapshot. So a worker writes the markers of all producers of a stage before it
calls any of them again. The aligner checks that (the *sibling rule*).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ...configs.errors import ProtocolError

__all__ = ["EpochAligner"]


class EpochAligner:
    """Which rings of a stage wait for the marker of an epoch, and whether all have come to it.

    Epochs are numbered upwards from 1. One is aligned at a time: the marker of a later one ends
    the alignment of an earlier one, which the coordinator has forgotten by then.

    Args:
        producers: for each ring, the numbers of the producers that write into it.
    """

    def __init__(self, producers: Sequence[Collection[int]]) -> None:
        self._open = [set(numbers) for numbers in producers]
        self._marked: list[set[int]] = [set() for _ in producers]
        self._last = 0  # the latest that was passed on or forgotten: its markers are ignored

        self.epoch: int | None = None
        """The epoch that is being aligned."""

    def waits(self, ring: int) -> bool:
        """Whether a ring has come to the marker, so that nothing may be read from it."""
        return self.epoch is not None and bool(self._open[ring]) and self._has_arrived(ring)

    def is_open(self, ring: int, producer: int) -> bool:
        """Whether a producer of a ring has not ended."""
        return producer in self._open[ring]

    @property
    def aligned(self) -> bool:
        """Whether all rings have come to the marker, so that the snapshot is due."""
        return self.epoch is not None and all(map(self._has_arrived, range(len(self._open))))

    def row(self, ring: int, producer: int) -> None:
        """Check a frame of rows.

        Raises:
            ProtocolError: its producer has written the marker, or its end, before.
        """
        if producer not in self._open[ring]:
            msg = f"producer {producer} wrote rows into ring {ring} after its end"
            raise ProtocolError(msg)
        if producer in self._marked[ring]:
            msg = (
                f"producer {producer} wrote rows into ring {ring} behind its marker of epoch"
                f" {self.epoch}, while producers that share the ring had not written theirs"
            )
            raise ProtocolError(msg)

    def marker(self, ring: int, producer: int, epoch: int) -> None:
        """Take a producer's marker; one of an epoch that is over does nothing.

        Raises:
            ProtocolError: the producer has written it before, or its end.
        """
        if producer not in self._open[ring]:
            msg = f"producer {producer} wrote a marker into ring {ring} after its end"
            raise ProtocolError(msg)
        if epoch <= self._last or (self.epoch is not None and epoch < self.epoch):
            return
        if epoch != self.epoch:
            self._begin(epoch)
        if producer in self._marked[ring]:
            msg = f"producer {producer} wrote the marker of epoch {epoch} into ring {ring} twice"
            raise ProtocolError(msg)
        self._marked[ring].add(producer)

    def end(self, ring: int, producer: int) -> None:
        """Take a producer's end, which counts as its marker of every later epoch."""
        self._open[ring].discard(producer)
        self._marked[ring].discard(producer)

    def pass_on(self) -> int:
        """Return the epoch that all rings have come to, and let them be read again.

        Raises:
            ProtocolError: they have not.
        """
        epoch = self.epoch
        if epoch is None or not self.aligned:
            msg = f"the marker of epoch {epoch} is to be passed on before all rings have come to it"
            raise ProtocolError(msg)
        self.forget(epoch)
        return epoch

    def forget(self, epoch: int) -> None:
        """End the alignment of an epoch and of all before it, and ignore their markers."""
        self._last = max(self._last, epoch)
        if self.epoch is not None and self.epoch <= epoch:
            self._clear(None)

    def _begin(self, epoch: int) -> None:
        if self.epoch is not None:
            self._last = self.epoch
        self._clear(epoch)

    def _clear(self, epoch: int | None) -> None:
        self.epoch = epoch
        for marked in self._marked:
            marked.clear()

    def _has_arrived(self, ring: int) -> bool:
        return self._open[ring] <= self._marked[ring]
