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
from ..operators.sealing import (
    beside_of,
    chunks_of,
    survivor_of,
    take_beside,
    take_chunks,
    take_over,
)
from ..operators.snapshots import OperatorSnapshot, StateChunk, Survivor
from ..state.budget import StateBudget
from ..state.keys import hash_keys, is_among, virtual_node_of
from ..state.owners import Owners
from ..transport.wire.batch import Batch
from .predecessors import Predecessors, has_ended

__all__ = ["ProcessState", "divided_rows"]

FRESH_PRODUCER = -1
"""Rows that waited count as those of a producer before all others, once these are others."""


class ProcessState:
    """The state of a process' object, which was opened.

    `remake` makes another object, as the user's class or factory says. With `checkpoints`, the
    attributes of an object are compared with those that it had when it was opened: an opaque one
    that has not changed has no state, so that it can be restored with any parallelism.
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
        self.by_key = gives_rows(process)
        """Whether its state moves by virtual node."""
        self._opened = beside_of(process, context) if checkpoints else None

    def kept(self, epoch: int) -> tuple[Sequence[StateChunk], bytes | None, Survivor | None]:
        """Return its state by virtual node, what belongs to no key, pickled, and what survives."""
        beside = beside_of(self._process, self._context)
        chunks = chunks_of(self._process, self._context, epoch)
        survivor = survivor_of(self._process, epoch)
        return chunks, None if beside == self._opened else beside, survivor

    def restore(self, before: Predecessors) -> None:
        """Take over the state of the objects before.

        Raises:
            UsageError: it cannot be divided, or it was kept in another way than the class does now.
        """
        kept = [one for one in before.sources if not has_ended(one)]
        for one in kept:
            has_state = one.values["beside"] is not None or bool(_state_of(one))
            if has_state and one.values["by_key"] != self.by_key:
                raise UsageError(self._changed_from(one.values["by_key"]))
        self._restore_beside(before, kept)
        if before.own is not None and before.own.survivor is not None:
            take_over(self._process, before.own.survivor)
        elif before.own is not None:
            take_chunks(self._process, _state_of(before.own), whole=True)
        else:
            for batch in self._divided(before):
                call_method(self._process.load, batch)

    def _restore_beside(self, before: Predecessors, kept: Sequence[OperatorSnapshot]) -> None:
        """Take attributes: those of the object before, or those that all objects had alike."""
        found = {one.values["beside"] for one in kept}
        if len(found) > 1 or (found != {None} and not self.by_key):
            name = type(self._process).__name__
            what, remedy = f"the state of {name}", "define dump and load to move it by key"
            if self.by_key:
                what, remedy = f"what {name} keeps in self", "declare it as state of each key"
            found = {before.only(what, remedy, self._context).values["beside"]}
        for beside in found - {None}:
            take_beside(self._process, beside, self._context)

    def _divided(self, before: Predecessors) -> Iterator[Batch]:
        """Yield the state of the virtual nodes that the object owns.

        What an object kept is loaded into another one like it, which returns a part.
        """
        wanted = self._context.owned_nodes
        for one in before.all:
            kept = nodes_of(one, self._context)
            theirs = kept[is_among(kept, wanted, self._context.virtual_nodes)]
            chunks = _state_of(one)
            if not (len(theirs) and chunks):
                continue
            scratch = self._remake()
            call_method(scratch.open, self._context_of(one))
            take_chunks(scratch, chunks, whole=False)
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

    def _changed_from(self, by_key: bool) -> str:
        how = "by key, and now defines no dump and load"
        if not by_key:
            how = "as a whole, and now defines dump and load"
        return (
            f"operator {self._context.operator_id!r}: {type(self._process).__name__} kept its state"
            f" {how}: restore it with the class as it was, or give the operator another id to begin"
            " anew"
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
    nodes = virtual_node_of(hashes, context.virtual_nodes)
    return rows.filter(is_among(nodes, context.owned_nodes, context.virtual_nodes))
