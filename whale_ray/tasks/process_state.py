"""The state of a process in snapshots: kept, given back, and divided among other instances."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ..configs.errors import UsageError
from ..operators.groupings import All, Grouping, Key
from ..operators.instance_context import InstanceContext
from ..operators.process import CoProcess, Process, call_method, gives_rows
from ..operators.sealing import kept_of, take_back
from ..operators.snapshots import OperatorSnapshot, StateChunk
from ..state.budget import StateBudget
from ..state.keys import hash_keys, virtual_node_of
from ..state.owners import Owners
from ..transport.wire.batch import Batch
from .predecessors import Predecessors, has_ended

__all__ = ["ProcessState", "divided_rows"]

FRESH_PRODUCER = -1
"""Rows that waited count as those of a producer before all others, once these are others."""


class ProcessState:
    """The state of a process' object, which was opened.

    `remake` makes another object, as the user's class or factory says. With `checkpoints`, what an
    opaque object keeps is compared with what it had when it was opened: one that has not changed
    has no state, so that it can be restored with any parallelism.
    """

    def __init__(
        self,
        process: Process | CoProcess,
        context: InstanceContext,
        remake: Callable[[], Process | CoProcess],
        *,
        checkpoints: bool,
    ) -> None:
        self._process, self._context, self._remake = process, context, remake
        self._opened: bytes | None = None
        if checkpoints and not gives_rows(process):
            self._opened = kept_of(process, context)[1]

    def kept(self) -> tuple[Sequence[StateChunk], bytes | None]:
        """Return its state: by virtual node, or the object, pickled, if it is opaque."""
        chunks, whole = kept_of(self._process, self._context)
        return chunks, None if whole == self._opened else whole

    def restore(self, before: Predecessors) -> None:
        """Take over the state of the objects before.

        Raises:
            UsageError: it cannot be divided, or it was kept in another way than the class does now.
        """
        if any(one.values.get("object") is not None for one in before.sources):
            self._restore_whole(before)
        elif not gives_rows(self._process):
            if any(_state_of(one) for one in before.sources):
                msg = self._changed_from("by key", "defines no dump and load")
                raise UsageError(msg)
        elif before.own is not None:
            for chunk in _state_of(before.own):
                call_method(self._process.load, chunk.rows)
        else:
            for batch in self._divided(before):
                call_method(self._process.load, batch)

    def _restore_whole(self, before: Predecessors) -> None:
        if gives_rows(self._process):
            msg = self._changed_from("as a whole", "defines dump and load")
            raise UsageError(msg)
        whole = before.only(f"the state of {type(self._process).__name__}", self._context)
        kept = whole.values["object"]
        if kept is not None:
            take_back(self._process, kept, self._context)

    def _divided(self, before: Predecessors) -> Iterator[Batch]:
        """Yield the state of the virtual nodes that the object owns.

        What an object kept is loaded into another one like it, which returns a part.
        """
        wanted = self._context.owned_nodes
        for one in before.all:
            theirs = np.intersect1d(nodes_of(one, self._context), wanted)
            chunks = _state_of(one)
            if not (len(theirs) and chunks):
                continue
            scratch = self._remake()
            call_method(scratch.open, self._context_of(one))
            for chunk in chunks:
                call_method(scratch.load, chunk.rows)
            for batch in scratch.dump(theirs):
                yield batch.copy()

    def _context_of(self, snapshot: OperatorSnapshot) -> InstanceContext:
        """Return a context like that of the object before; its memory is counted apart."""
        budget = self._context.state_budget
        return replace(
            self._context,
            instance=snapshot.instances[0],
            instances=snapshot.instances,
            parallelism=snapshot.parallelism,
            owners=None,
            watermark_ns=snapshot.watermark_ns,
            state_budget=StateBudget(budget.limit_bytes, budget.disk_bytes_max, budget.disk_folder),
        )

    def _changed_from(self, how: str, now: str) -> str:
        return (
            f"operator {self._context.operator_id!r}: {type(self._process).__name__} kept its state"
            f" {how}, and now {now}: restore it with the class as it was, or give the operator"
            " another id to begin anew"
        )


def divided_rows(
    before: Predecessors, context: InstanceContext, groupings: Sequence[Grouping]
) -> Iterator[tuple[int, int, Batch]]:
    """Yield the rows that waited for event time and are for this object, as (port, source, rows).

    They are divided as the input's grouping divides rows: by key; of an input that goes to every
    instance, each takes all; others go with the object where they waited.
    """
    own = before.own
    objects = [one for one in before.sources if not has_ended(one)]
    for number, one in enumerate(objects):
        for chunk in one.chunks[one.values["state_chunks"] :]:
            assert chunk.waits is not None
            port, source = chunk.waits
            rows = chunk.rows
            if own is None:
                grouping = groupings[port]
                if isinstance(grouping, Key):
                    rows = _owned(rows, grouping.columns, context)
                elif number if isinstance(grouping, All) else one not in before.dealt:
                    continue
            if rows.num_rows:
                yield port, source if before.same_producers else FRESH_PRODUCER, rows


def nodes_of(snapshot: OperatorSnapshot, context: InstanceContext) -> npt.NDArray[np.int64]:
    """Return the virtual nodes whose state an object kept, int64 (n,)."""
    return Owners.even(context.virtual_nodes, snapshot.parallelism).nodes_of(*snapshot.instances)


def _state_of(snapshot: OperatorSnapshot) -> Sequence[StateChunk]:
    """Return the chunks of state, which come before those of rows that wait."""
    return snapshot.chunks[: snapshot.values.get("state_chunks", 0)]


def _owned(rows: Batch, columns: Sequence[str], context: InstanceContext) -> Batch:
    hashes, _ = hash_keys(rows, columns)
    return rows.filter(np.isin(virtual_node_of(hashes, context.virtual_nodes), context.owned_nodes))
