"""`KeptArrays`: arrays beside kept rows, which grow with these: in memory, or in a file.

A file is met like memory, at the address of its mapping, so loops need not know where arrays lie.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from ...state.page_file import PageFile

    Array = npt.NDArray[Any]

__all__ = ["KeptArrays"]


class KeptArrays:
    """Arrays by name; all of them are in memory, or all on the disk.

    Args:
        arrays: what they are at first.

    Attributes:
        version: how many times any of them has been replaced by another one.
    """

    def __init__(self, **arrays: Array) -> None:
        self._arrays = arrays
        self._pages: PageFile | None = None
        self._bytes = sum(array.nbytes for array in arrays.values())
        self.version = 0

    def __getitem__(self, name: str) -> Array:
        """Return an array, which is another one once it has grown, or lies on the disk."""
        return self._arrays[name]

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return 0 if self._pages else self._bytes

    @property
    def spilled_bytes(self) -> int:
        """Bytes on the disk."""
        return self._bytes if self._pages else 0

    def resize(self, name: str, size: int, used: int) -> None:
        """Let an array have room for `size` values, whose first `used` ones stay."""
        before = self._arrays[name]
        after = self._arrays[name] = self.made(size, before.dtype)
        if used:
            after[:used] = before[:used]
        self._bytes += after.nbytes - before.nbytes
        self.version += 1

    def made(self, size: int, dtype: Any) -> Array:
        """Return an array that lies where these do, (size,)."""
        return self._pages.array(size, dtype) if self._pages else np.empty(size, dtype)

    def next_to_spill(self, least_bytes: int) -> int:
        """Return the bytes of memory that `spill` frees; 0 if they are fewer than the least."""
        return self.nbytes if self.nbytes >= least_bytes else 0

    def spill(self, pages: PageFile) -> None:
        """Put the arrays, and what they will grow to, on the disk; raise as `PageFile.back`."""
        moved = pages.arrays(
            {name: (len(array), array.dtype) for name, array in self._arrays.items()}
        )
        for name, array in self._arrays.items():
            moved[name][:] = array
        self._arrays, self._pages, self.version = moved, pages, self.version + 1
