"""Rows gathered for a process by key whose state is on the disk, so that one pass serves many.

A pass over the state reads each page once, however many rows need it, so a thousand rows cost
little more than one (see `KeyPasses`). Rows are gathered three times as long as the last pass
took, as a group commit gathers transactions (DeWitt et al. 1984): a slow stream hardly waits, a
fast one fills the memory that there is for its rows, which then wait on the disk. A watermark that
comes meanwhile waits with them: it follows all of them, as if they had come together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ..transport.wire.batch import Batch

__all__ = ["Gathered", "GatheredRows"]

_WAITED_PASSES = 3
"""A fast stream spends a quarter of its time on passes: most of what one costs is for all rows."""
_WAIT_NS_MAX = 2_000_000_000
_PASS_BYTES_PER_ROW = 48
"""What a pass takes for a row beside its columns: hash, key, order and place."""


class Gathered(NamedTuple):
    """What has been gathered: rows in the order in which they came, and the last watermark."""

    rows: Batch | None
    watermark_ns: int | None


class GatheredRows:
    """What waits for the next pass; without input, output or clock of its own."""

    def __init__(self) -> None:
        self._batches: list[Batch] = []
        self._first: Batch | None = None
        self._watermark_ns: int | None = None
        self._nbytes = 0
        self._wait_ns = 0
        self.rows = 0
        self.due_ns: int | None = None
        """When the next pass is to begin, monotonic ns; None if nothing waits."""
        self.are_put_off = False
        """Whether some of the rows wait elsewhere."""

    def fits(self, batch: Batch) -> bool:
        """Return whether a batch has the columns of what waits: joining them changes no value."""
        first = self._first
        if first is None:
            return True
        return batch.has_times == first.has_times and (
            batch.schema is first.schema or _columns(batch) == _columns(first)
        )

    def add(self, batch: Batch, now_ns: int, *, kept: bool) -> None:
        """Let rows that fit wait; count them alone if they are `kept` elsewhere, for event time."""
        if not kept:
            if self._first is None:
                self._first = batch.slice(0, 0).copy()
            self._batches.append(batch if batch.owned else batch.copy())
            self.rows += batch.num_rows
        self._nbytes += batch.nbytes + _PASS_BYTES_PER_ROW * batch.num_rows
        if self.due_ns is None:
            self.due_ns = now_ns + self._wait_ns

    def hold(self, watermark_ns: int) -> None:
        """Let a watermark wait with the rows."""
        self._watermark_ns = watermark_ns

    def waits(self, now_ns: int, bytes_max: int) -> bool:
        """Return whether something waits, and may go on: it is neither due nor too much."""
        return self.due_ns is not None and now_ns < self.due_ns and self._nbytes < bytes_max

    def is_due(self, now_ns: int) -> bool:
        """Return whether the next pass is to begin."""
        return self.due_ns is not None and now_ns >= self.due_ns

    def put_off(self, takes: Callable[[Batch], bool]) -> bool:
        """Let the rows wait elsewhere until the next pass, if `takes` does; return whether."""
        if not self._batches or not takes(Batch.concat(self._batches)):
            return False
        self._batches, self._nbytes, self.are_put_off = [], 0, True
        return True

    def give_back(self) -> Gathered:
        """Return all that waits, which the next pass takes, behind the rows that were put off.

        If all were, the rows that it returns are none, with their columns.
        """
        batches, self._batches = self._batches, []
        if not batches and self.are_put_off and self._first is not None:
            batches = [self._first]
        found = Gathered(Batch.concat(batches) if batches else None, self._watermark_ns)
        self._watermark_ns, self._nbytes, self.rows, self.due_ns = None, 0, 0, None
        self._first, self.are_put_off = None, False
        return found

    def note_pass(self, took_ns: int) -> None:
        """Note how long a pass took: the next rows wait three times as long at most."""
        self._wait_ns = min(_WAITED_PASSES * took_ns, _WAIT_NS_MAX)


def _columns(batch: Batch) -> list[tuple[str, str]]:
    return [(one.name, one.type.name) for one in batch.schema.fields]
