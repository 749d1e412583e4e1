"""`KeptArrays`: arrays beside kept rows, which grow with these: in memory, or in a file.

A file is met like memory, at the address of its mapping, so loops need not know where arrays lie.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ...transport.wire.block import address_of

if TYPE_CHECKING:
    from ...state.page_file import PageFile

    Array = npt.NDArray[Any]

__all__ = ["KeptArrays"]

_ALIGNED_BYTES = 64


class KeptArrays:
    """Arrays by name, all in one piece of memory, or all in one of a file.

    A join may have an index for each of thousands of spans: one piece, of which views are made when
    they are asked for, takes a fraction of the time of as many arrays.

    Args:
        types: those of the arrays' values by name; the arrays are empty at first.

    Attributes:
        version: how many times the arrays have been moved.
    """

    def __init__(self, types: Mapping[str, np.dtype[Any]]) -> None:
        self._types = types
        self._sizes = dict.fromkeys(types, 0)
        self._begins = dict.fromkeys(types, 0)  # where they are in the memory
        self._memory: npt.NDArray[np.uint8] | None = None
        self._views: dict[str, Array] = {}
        self._pages: PageFile | None = None
        self._bytes = 0
        self.version = 0

    def __getitem__(self, name: str) -> Array:
        """Return an array, which is another one once the arrays have been moved."""
        view = self._views.get(name)
        if view is None:
            kind, begin, size = self._types[name], self._begins[name], self._sizes[name]
            if self._memory is None:
                return np.empty(0, kind)
            view = self._memory[begin : begin + size * kind.itemsize].view(kind)
            self._views[name] = view
        return view

    def size(self, name: str) -> int:
        """Return for how many values an array has room."""
        return self._sizes[name]

    @property
    def addresses(self) -> dict[str, int]:
        """Where each array is, until they are moved."""
        base = 0 if self._memory is None else address_of(self._memory)
        return {name: base + begin for name, begin in self._begins.items()}

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return 0 if self._pages else self._bytes

    @property
    def spilled_bytes(self) -> int:
        """Bytes on the disk."""
        return self._bytes if self._pages else 0

    def resize(self, sizes: Mapping[str, int], used: Mapping[str, int]) -> None:
        """Move all arrays to where there is room for more; raise as `PageFile.array`.

        Views of before stay as they are.

        Args:
            sizes: for how many values each array has room then; those that are not named keep
                their sizes.
            used: how many of an array's first values are kept; none of those that are not named.
        """
        kept = {name: self[name][:count] for name, count in used.items() if count}
        self._sizes = {**self._sizes, **sizes}
        self._begins, nbytes = {}, 0
        for name, size in self._sizes.items():
            self._begins[name] = nbytes
            nbytes += -(-self._types[name].itemsize * size // _ALIGNED_BYTES) * _ALIGNED_BYTES
        self._memory = self.made(nbytes, np.uint8)
        self._views, self._bytes, self.version = {}, nbytes, self.version + 1
        for name, values in kept.items():
            self[name][: len(values)] = values

    def made(self, size: int, dtype: Any) -> Array:
        """Return an array that lies where these do, (size,)."""
        return self._pages.array(size, dtype) if self._pages else np.empty(size, dtype)

    def next_to_spill(self, least_bytes: int) -> int:
        """Return the bytes of memory that `spill` frees; 0 if they are fewer than the least."""
        return self.nbytes if self.nbytes >= least_bytes else 0

    def spill(self, pages: PageFile) -> None:
        """Put the arrays, and what they will grow to, on the disk; raise as `PageFile.array`."""
        moved = pages.array(self._bytes, np.uint8)
        if self._memory is not None:
            moved[:] = self._memory
        self._memory, self._views = moved, {}
        self._pages, self.version = pages, self.version + 1
