"""Which instance each row of a batch goes to: the groupings, carried out on whole batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ..configs.errors import BadRowError, Interrupted, UserFunctionError
from ..operators import groupings
from ..plan.physical import Edge
from ..state import keys
from ..state.owners import Owners
from ..transport.wire.batch import Batch

Instances = npt.NDArray[np.int64]
Partitioner = Callable[[Batch], tuple[Batch, Instances, int]]
"""Takes a batch; returns it without refused rows, each row's instance, int64 (num_rows,), and how
many rows were left out for a null key."""


def make_partitioner(
    edge: Edge, parallelism: int, owners: Owners | None, local: tuple[int, ...], first: int
) -> Partitioner:
    """Return the partitioner of an edge to `parallelism` instances.

    Args:
        edge: the edge; its grouping must not be `All`.
        parallelism: instances of the target.
        owners: which instance owns each virtual node; needed for a key.
        local: the target's instances on the producing worker.
        first: the producer's number, to which rows are forwarded, and at which a shuffle begins.

    The partitioner raises BadRowError for a null key (where the edge refuses it) or an instance
    number that does not exist, and UserFunctionError for what a user's function raised.
    """
    match edge.grouping:
        case groupings.Key(columns):
            assert owners is not None
            return _by_key(edge, columns, owners)
        case groupings.Direct(column):
            return _direct(edge, column, parallelism)
        case groupings.Custom(function):
            return _custom(edge, function, parallelism)
        case groupings.Global():
            return lambda batch: (batch, np.zeros(batch.num_rows, dtype=np.int64), 0)
        case groupings.Forward():
            return lambda batch: (batch, np.full(batch.num_rows, first, dtype=np.int64), 0)
        case groupings.LocalOrShuffle() if local:
            return _in_turn(np.array(local, dtype=np.int64), first)
        case groupings.Shuffle() | groupings.LocalOrShuffle():
            return _in_turn(np.arange(parallelism, dtype=np.int64), first)
        case _:
            msg = f"edge {edge.id} cannot be partitioned by {edge.grouping.describe()}"
            raise ValueError(msg)


def _by_key(edge: Edge, columns: tuple[str, ...], owners: Owners) -> Partitioner:
    def partition(batch: Batch) -> tuple[Batch, Instances, int]:
        batch, dropped = without_null_keys(edge, columns, batch)
        hashes, _ = keys.hash_keys(batch, columns)
        nodes = keys.virtual_node_of(hashes, owners.virtual_nodes)
        return batch, owners.of(nodes), dropped

    return partition


def without_null_keys(edge: Edge, columns: tuple[str, ...], batch: Batch) -> tuple[Batch, int]:
    """Return the rows that an edge takes, and how many were left out for a null in their key.

    Raises:
        BadRowError: there is such a row, and the edge refuses it.
        InputError: a key column does not exist.
    """
    present = [batch.column(name).validity for name in columns]
    known = [validity for validity in present if validity is not None]
    if not known or edge.on_null_key == "keep":
        return batch, 0
    complete = np.logical_and.reduce(known)
    dropped = batch.num_rows - int(np.count_nonzero(complete))
    if not dropped:
        return batch, 0
    if edge.on_null_key == "fail":
        row = int(np.argmin(complete))
        raise BadRowError(_null_key(edge, columns, batch.preview(row)))
    return batch.filter(complete), dropped


def _null_key(edge: Edge, columns: tuple[str, ...], preview: str) -> str:
    return (
        f"operator {edge.source_operator!r} sends a row with a null key to "
        f"{edge.target_operator!r} (key_by {', '.join(columns)}): {preview}; "
        "filter such rows, or let key_by drop and count them with on_null='drop'"
    )


def _in_turn(instances: Instances, first: int) -> Partitioner:
    """Deal each batch out in contiguous shares, beginning one instance further each time."""
    turn = first

    def partition(batch: Batch) -> tuple[Batch, Instances, int]:
        nonlocal turn
        count = len(instances)
        shares = np.arange(batch.num_rows, dtype=np.int64) * count // max(batch.num_rows, count)
        chosen = instances[(shares + turn) % count]
        turn += 1 if batch.num_rows >= count else batch.num_rows
        return batch, chosen, 0

    return partition


def _direct(edge: Edge, column: str, parallelism: int) -> Partitioner:
    def partition(batch: Batch) -> tuple[Batch, Instances, int]:
        named = batch[column]
        if not isinstance(named, np.ndarray) or named.dtype.kind not in "iu":
            msg = (
                f"direct({column!r}) after operator {edge.source_operator!r} needs an integer "
                f"column, not {batch.schema.field(column).type.name}; cast it first"
            )
            raise BadRowError(msg)
        if not np.ma.is_masked(named):
            return batch, _checked(edge, batch, np.ma.getdata(named), parallelism), 0
        null_rows = np.ma.getmaskarray(named)
        if edge.on_null_key == "fail":
            row = int(np.argmax(null_rows))
            raise BadRowError(_null_instance(edge, column, batch.preview(row)))
        numbers = np.ma.getdata(named)[~null_rows]
        batch = batch.filter(~null_rows)
        return batch, _checked(edge, batch, numbers, parallelism), int(null_rows.sum())

    return partition


def _null_instance(edge: Edge, column: str, preview: str) -> str:
    return (
        f"operator {edge.source_operator!r} sends a row to {edge.target_operator!r} with a null in "
        f"{column!r}, which names no instance (direct {column}): {preview}; fill or filter such "
        "rows, or let direct drop and count them with on_null='drop'"
    )


def _custom(edge: Edge, function: Callable[[Batch, int], object], parallelism: int) -> Partitioner:
    def partition(batch: Batch) -> tuple[Batch, Instances, int]:
        try:
            returned: Any = function(batch, parallelism)
            named = np.asarray(returned)
        except Interrupted:
            raise
        except BaseException as error:
            preview = batch.preview(0)
            raise UserFunctionError.of(error, edge.source_operator, 0, preview) from error
        if named.shape != (batch.num_rows,) or named.dtype.kind not in "iu":
            msg = (
                f"the partition_by function after operator {edge.source_operator!r} returned "
                f"{named.dtype} of shape {named.shape}; return one integer per row, "
                f"shape ({batch.num_rows},)"
            )
            raise BadRowError(msg)
        if np.ma.is_masked(returned):  # of null columns; what lies below the mask says nothing
            row = int(np.argmax(np.ma.getmaskarray(returned)))
            msg = (
                f"the partition_by function after operator {edge.source_operator!r} returned a "
                f"null for {batch.preview(row)}: return a number for such rows, or filter them"
            )
            raise BadRowError(msg)
        return batch, _checked(edge, batch, named, parallelism), 0

    return partition


def _checked(
    edge: Edge, batch: Batch, numbers: npt.NDArray[np.integer[Any]], parallelism: int
) -> Instances:
    wrong = (numbers < 0) | (numbers >= parallelism)
    if wrong.any():
        row = int(np.argmax(wrong))
        msg = (
            f"operator {edge.source_operator!r} sends a row to instance {numbers[row]} of "
            f"{edge.target_operator!r}, which has instances 0 to {parallelism - 1}: "
            f"{batch.preview(row)}"
        )
        raise BadRowError(msg)
    return numbers.astype(np.int64)
