"""Which parents a vertex reads a stream from, and the parents that it is leaving.

A vertex usually reads from one parent. During a switch it reads from the old one up to the cut and
from the new one after it; where neither holds what comes next there is a gap before the cut, which
the source fills from what it retains.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass

from .trees import Vertex


@dataclass(frozen=True)
class Span:
    """A part of the stream, and the parent that it is read from."""

    parent: Vertex
    begin: int
    """First byte; the span ends where the next one begins."""
    is_gap: bool = False
    """Read from what the source retains, not from its ring."""


class ReadPlan:
    """The spans that a vertex reads, in order; a pure value that its vertex changes."""

    def __init__(self, root: Vertex, parent: Vertex | None, begin: int) -> None:
        """Begin with one span from `parent`; with none for the root and for a joining vertex."""
        self._root = root
        self.spans: tuple[Span, ...] = () if parent is None else (Span(parent, begin),)
        self.leaving: dict[Vertex, int] = {}
        """Parents that must learn that they are not needed, with the epoch of the change."""

    @property
    def limit(self) -> int | None:
        """The byte at which the present span ends; None: it has no end."""
        return self.spans[1].begin if self.is_switching else None

    @property
    def is_switching(self) -> bool:
        """Whether another span follows the present one."""
        return len(self.spans) > 1

    @property
    def last_parent(self) -> Vertex | None:
        """The parent of the last span: that in the present tree."""
        return self.spans[-1].parent if self.spans else None

    @property
    def parents(self) -> set[Vertex]:
        """All that a link is needed to: parents now and soon, and those being left."""
        return {span.parent for span in self.spans} | self.leaving.keys()

    def gap(self, begin: int) -> Span:
        """Return a span that is read from what the source retains."""
        return Span(self._root, begin, is_gap=True)

    def follow(self, spans: Sequence[Span], epoch: int, gone: Container[Vertex]) -> None:
        """Read along these spans from now on; leave the parents that are in none of them.

        `gone`: failed vertices, which need not learn that they are left.
        """
        wanted = {span.parent for span in spans}
        for span in self.spans:
            if span.parent not in wanted and span.parent not in gone:
                self.leaving[span.parent] = epoch
        for parent in wanted:
            self.leaving.pop(parent, None)
        self.spans = tuple(spans)

    def left(self, parent: Vertex, epoch: int) -> None:
        """Record a parent's answer to LEAVE; one of an older epoch is ignored."""
        if self.leaving.get(parent, -1) <= epoch:
            self.leaving.pop(parent, None)
