"""Strings as bytes in a pool, for compiled loops: text i is `pool[offsets[i] : offsets[i + 1]]`."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ...transport.compiling import njit

__all__ = ["frozen", "pick_texts"]

_Any = TypeVar("_Any", bound=np.generic)


def frozen(array: npt.NDArray[_Any]) -> npt.NDArray[_Any]:
    """Return a read-only, contiguous view: numba compiles anew for arrays that can be written."""
    if array.flags.c_contiguous and not array.flags.writeable:
        return array
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view


@njit(cache=True, nogil=True)
def pick_texts(pool: Any, offsets: Any, rows: Any) -> Any:
    """Return the pool and the offsets of the texts of `rows`.

    Args:
        pool: uint8.
        offsets: int32.
        rows: numbers of texts, int64, shape (n,).

    Returns:
        uint8; int32, shape (n + 1,).
    """
    picked = np.empty(len(rows) + 1, np.int32)
    picked[0] = 0
    for place in range(len(rows)):
        row = rows[place]
        picked[place + 1] = picked[place] + offsets[row + 1] - offsets[row]
    texts = np.empty(picked[-1], np.uint8)
    for place in range(len(rows)):
        start = offsets[rows[place]]
        for step in range(picked[place + 1] - picked[place]):
            texts[picked[place] + step] = pool[start + step]
    return texts, picked
