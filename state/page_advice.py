"""What compiled loops tell the kernel of pages that they are about to need."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from ..transport.atomics import kernel

__all__ = ["GAP_PAGES_MAX", "GAP_PAGES_MAX_IN_ORDER", "MADV_WILLNEED", "PAGE_SHIFT", "advise_pages"]

PAGE_SHIFT = 12
MADV_WILLNEED = 3

GAP_PAGES_MAX = 4
"""Pages between two that are wanted are read with them if they are not more."""
GAP_PAGES_MAX_IN_ORDER = 16
"""The same where pages are met in their order, in memory that is kept free for them."""

_madvise: Any = types.ExternalFunction(
    "madvise", types.int32(types.int64, types.uint64, types.int32)
)


@kernel(types.void(types.int64, types.int64, types.int32), releases_gil=True)
def advise_pages(first: Any, last: Any, advice: Any) -> None:
    """Advise the kernel of pages, `first` and `last` among them: addresses without PAGE_SHIFT."""
    _madvise(first << PAGE_SHIFT, np.uint64((last - first + 1) << PAGE_SHIFT), advice)
