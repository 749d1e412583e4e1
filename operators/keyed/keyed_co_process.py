"""`KeyedCoProcess`: a `KeyedProcess` with two inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..process import CoProcess, Output, check_nothing
from .keyed_process import Keyed, missing_timer

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from ...transport.wire.batch import Batch

    Slots = npt.NDArray[np.int64]

__all__ = ["KeyedCoProcess"]


class KeyedCoProcess(Keyed, CoProcess):
    """A `KeyedProcess` with two inputs: `left.key_by("id").connect(right.key_by("id"))`.

    The state of a key is that of both inputs. The right input may be broadcast instead: its rows
    belong to all keys, so `on_right_row` keeps what they say in `self`, and has no handles.
    """

    def slots(self, batch: Batch, *, right: bool = False) -> Slots:
        """Return a number for each row's key, as `KeyedProcess.slots`.

        Args:
            batch: rows of one input.
            right: whether of the right one.
        """
        return self._slots(batch, int(right))

    def on_left(self, batch: Batch, out: Output) -> None:
        """Take the next rows of the left input. The default calls `on_left_row` for each."""
        self._each_bound_row(self.on_left_row, batch, 0, out)

    def on_right(self, batch: Batch, out: Output) -> None:
        """Take the next rows of the right input. The default calls `on_right_row` for each."""
        self._each_bound_row(self.on_right_row, batch, 1, out)

    def on_merged(
        self, left: Batch, right: Batch, order: npt.NDArray[np.bool_], out: Output
    ) -> None:
        """Take rows of both inputs, in event-time order; calls what the class defines."""
        cls = type(self)
        of_rows = cls.on_left is KeyedCoProcess.on_left and cls.on_right is KeyedCoProcess.on_right
        if not of_rows:
            super().on_merged(left, right, order, out)
            return
        self._each_merged(left, right, order.tolist(), out)

    def _each_merged(self, left: Batch, right: Batch, order: Sequence[bool], out: Output) -> None:
        from ..rows import fail_at_row

        batches, calls = (left, right), (self.on_left_row, self.on_right_row)
        # The records of both are looked up before the first row: rows of one bind their own.
        rows = [
            self._bound_rows(batch, port, out) if batch.num_rows else iter(())
            for port, batch in enumerate(batches)
        ]
        taken = [0, 0]
        side = False
        try:
            for side in order:
                row = next(rows[side])
                if (returned := calls[side](row, out)) is not None:
                    check_nothing(calls[side], returned)
                taken[side] += 1
        except BaseException as error:  # noqa: BLE001  # it is raised again
            fail_at_row(error, taken[side], batches[side])

    @classmethod
    def missing(cls) -> str | None:
        """Return what the class must still define, in words, or None if it is complete."""
        left = cls.on_left is KeyedCoProcess.on_left and cls.on_left_row is CoProcess.on_left_row
        right = (
            cls.on_right is KeyedCoProcess.on_right and cls.on_right_row is CoProcess.on_right_row
        )
        if cls.on_merged is KeyedCoProcess.on_merged and (left or right):
            names = [
                name for name, lacks in (("on_left_row", left), ("on_right_row", right)) if lacks
            ]
            return " and ".join(names)
        return missing_timer(cls)
