"""`ReadEveryByte`: an operator that only reads, and counts what it has read."""

from __future__ import annotations

import os
import pickle
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from ....operators.process import InstanceContext, Output, Process
from ....transport.wire.batch import Batch
from . import control_block as b
from .reading_kernels import read_rows

__all__ = ["ReadEveryByte"]

Words = npt.NDArray[np.uint64]


class ReadEveryByte(Process):
    """Every instance reads every byte of every row; counters and checksums go to the control block.

    One object serves all instances of a worker, with one pass for each.
    """

    per_worker: ClassVar[bool] = True
    one_by_one: ClassVar[bool] = True

    def __init__(self, control_block: b.ControlBlockHandle) -> None:
        """Report to `control_block`."""
        self._handle = control_block

    def open(self, context: InstanceContext) -> None:
        """Find the worker's record, and load the compiled loop."""
        control_block = b.ControlBlock.attach(self._handle)
        self._control_block = control_block
        self._clock = context.clock
        self._sums: Words = np.zeros(len(context.instances), np.uint64)
        self._first = context.instances[0]
        # Instances are placed in blocks, so the worker's number follows from its first instance.
        worker = self._first * control_block.shape.workers // context.parallelism
        self._record = control_block.workers[worker]
        self._arrived, self._done = control_block.arrived[worker], control_block.done[worker]
        self._bins = control_block.bins[1 + worker]
        nothing: Words = np.zeros(0, np.uint64)
        read_rows(nothing.astype(np.uint32), nothing, nothing, self._sums)
        self._record[b.PID] = os.getpid()

    def on_batch(self, batch: Batch, out: Output) -> None:
        """Read the rows once for each of their destination instances."""
        begin_ns = self._clock.monotonic_ns()
        instances = out.instances
        first = instances[0] - self._first
        sums = self._sums[first : first + len(instances)]
        numbers, moments, content = _columns(batch)
        read_rows(numbers, moments, content, sums)
        self._note(numbers, len(instances), begin_ns, self._clock.monotonic_ns())

    def _note(
        self, numbers: npt.NDArray[np.uint32], instances: int, begin_ns: int, end_ns: int
    ) -> None:
        """Count the rows for `instances` instances; record the times of sampled rows."""
        control_block, record = self._control_block, self._record
        orders, rows = control_block.orders, len(numbers)
        stride = int(orders[b.STRIDE])
        if stride:
            sampled = numbers[-int(numbers[0]) % stride :: stride]
            places = sampled // stride % control_block.shape.samples
            self._arrived[places] = begin_ns
            self._done[places] = end_ns
        if orders[b.BIN_NS]:
            place = (end_ns - int(orders[b.BIN_BEGIN_NS])) // int(orders[b.BIN_NS])
            if 0 <= place < control_block.shape.bins:
                self._bins[place] += rows * instances
        place = self._first
        control_block.sums[place : place + len(self._sums), 0] = self._sums.view(np.int64)
        record[b.OWN_NS] += end_ns - begin_ns
        record[b.BATCHES] += 1
        record[b.ROWS] += rows * instances


def _columns(batch: Batch) -> tuple[npt.NDArray[np.uint32], Words, Words]:
    """Return the three columns as words; pickled rows are unpickled."""
    if "row" not in batch.schema.names:
        return (
            batch.column("number").data,
            batch.column("moment_ns").data.view(np.uint64),
            batch.column("content").data.view(np.uint64),
        )
    column = batch.column("row")
    assert column.offsets is not None
    pool = column.data.tobytes()
    rows = [
        pickle.loads(pool[start:stop])  # noqa: S301  # of our own source
        for start, stop in zip(column.offsets[:-1], column.offsets[1:], strict=True)
    ]
    numbers, moments, contents = zip(*rows, strict=True)
    return (
        np.array(numbers, np.uint32),
        np.array(moments, np.uint64),
        np.frombuffer(b"".join(contents), np.uint64),
    )
