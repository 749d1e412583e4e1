"""Streams: what the methods of a topology return, and what they can do next.

::

    Topology.source ──▶ Stream ──key_by, shuffle, broadcast …──▶ GroupedStream
                          ▲  ▲                                      │   │
                          │  └── map, filter, select, process … ────┘   │ connect
                          └───────────── process ── ConnectedStream ◀───┘

A `Stream` is the output of one operator. Any number of operators may read it, so plans branch and
meet again; each method adds an operator, or says how rows are spread, and returns a new value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...configs.errors import TopologyError
from ...operators.groupings import (
    All,
    Custom,
    Direct,
    Forward,
    Global,
    Grouping,
    Key,
    LocalOrShuffle,
    Shuffle,
)
from ...plan.logical import LEFT, Input, OnBadRows
from . import misuse
from .checks import check_choice, check_function, mistake
from .grouped import GroupedStream
from .known import check_columns, kind_of_key
from .readable import Readable
from .registry import Registry
from .unions import add_union, no_stream

if TYPE_CHECKING:
    import numpy.typing as npt

    from ...transport.wire.batch import Batch


class Stream(Readable):
    """The output of an operator. Group it to say which instance gets which row."""

    def __init__(self, registry: Registry, operator_id: str) -> None:
        super().__init__(registry, operator_id, Forward())

    def __repr__(self) -> str:
        return f"Stream({self.id!r} of topology {self._registry.name!r})"

    def union(self, *others: Stream, id: str | None = None) -> Stream:
        """Return all rows of this stream and of others with equal columns.

        A union costs nothing by itself: what reads it reads each of its streams. The rows of one
        stream stay in its order; between streams there is none but that of event times, and rows
        of equal time come in the order in which the streams are named here. The watermark is the
        least of all.

        Args:
            others: streams of the same topology; their columns have the same names and types, in
                the same order.
            id: a name for the union; chosen if left out.

        Raises:
            TopologyError: what was passed is no such stream, or columns differ, as far as they are
                known; the others are compared while the job runs.
        """
        union_id = self._registry.choose_id("union", id)
        inputs = tuple(self._united(union_id, stream) for stream in (self, *others))
        add_union(self._registry, union_id, inputs)
        return Stream(self._registry, union_id)

    def key_by(self, *columns: str, on_null: OnBadRows = "fail") -> GroupedStream:
        """Send all rows of one key to one instance, in order.

        Args:
            columns: the columns that make the key.
            on_null: "fail" ends the job at a row whose key is null, "drop" leaves such rows out
                and counts them.

        Raises:
            TopologyError: a column is missing, as far as the columns are known.
        """
        check_choice(self.id, "on_null", on_null, ("fail", "drop"))
        return self._grouped(lambda: Key(columns), "key_by", columns, on_null)

    def shuffle(self) -> GroupedStream:
        """Send every row to one instance, so that all get about the same share."""
        return self._grouped(Shuffle)

    def broadcast(self) -> GroupedStream:
        """Send every row to **all** instances; it is encoded once, and read in place."""
        return self._grouped(All)

    def global_(self) -> GroupedStream:
        """Send every row to the one instance of the next operator."""
        return self._grouped(Global)

    def local_or_shuffle(self) -> GroupedStream:
        """Send rows to instances in the same worker where it has any, else shuffle them."""
        return self._grouped(LocalOrShuffle)

    def direct(self, column: str, *, on_null: OnBadRows = "fail") -> GroupedStream:
        """Send every row to the instance whose number (from 0) stands in an integer column.

        Args:
            column: the column's name.
            on_null: "fail" ends the job at a row with a null there, "drop" leaves such rows out
                and counts them.

        Raises:
            TopologyError: the column is missing or holds no integers, as far as that is known.
        """
        check_choice(self.id, "on_null", on_null, ("fail", "drop"))
        grouped = self._grouped(lambda: Direct(column), "direct", (column,), on_null)
        kind = (self._columns() or {}).get(column)
        if kind is not None and kind_of_key(kind) != "integer":
            raise mistake(self.id, f"direct needs a column of integers, {column!r} is {kind.name}")
        return grouped

    def partition_by(self, function: Callable[[Batch, int], npt.ArrayLike]) -> GroupedStream:
        """Send every row to the instance that a function of the user's names.

        Args:
            function: (batch, parallelism) → instance numbers from 0, shape (num_rows,).

        Raises:
            TopologyError: the function cannot be called with two arguments.
        """
        takes = ("batch", "parallelism")
        check_function(self.id, "partition_by", function, takes, "instance numbers")
        return self._grouped(lambda: Custom(function))

    def _united(self, union_id: str, stream: object) -> Input:
        """Return a stream as an input of a union, which spreads no rows itself."""
        if not isinstance(stream, Readable):
            raise no_stream(union_id, stream)
        if not isinstance(stream, Stream):
            raise mistake(
                union_id,
                misuse.grouped_before_union(repr(stream.id), stream._grouping.describe()),
            )
        if stream._registry is not self._registry:
            raise mistake(
                union_id,
                f"union takes streams of one topology, but {stream.id!r} belongs to another one"
                f" named {stream._registry.name!r}: make all with the same Topology",
            )
        own = None if stream._transport is self._registry.transport else stream._transport
        return Input(stream.id, LEFT, Forward(), transport=own)

    def _grouped(
        self,
        make: Callable[[], Grouping],
        verb: str = "",
        columns: tuple[str, ...] = (),
        on_null: OnBadRows = "fail",
    ) -> GroupedStream:
        try:
            grouping = make()
        except TopologyError as error:
            raise mistake(self.id, str(error)) from None
        check_columns(self.id, verb, columns, self._columns())
        return GroupedStream(self._registry, self._upstream, grouping, on_null, self._transport)

    if not TYPE_CHECKING:  # a type checker knows what is missing; everybody else is told the fix

        def __getattr__(self, name: str) -> Any:
            text = misuse.on_ungrouped(name)
            if text:
                raise mistake(self.id, text)
            columns = () if name.startswith("_") else self._columns() or ()
            raise AttributeError(misuse.other_name("Stream", name, columns))
