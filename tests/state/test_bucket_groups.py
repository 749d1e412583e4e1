"""Groups of buckets against numpy's comparison of the same words."""

from __future__ import annotations

from typing import Any

import numpy as np

from whale_ray.state.bucket_groups import EQUAL, GROUP_BUCKETS, compared_group, first_of
from whale_ray.transport.compiling import njit


@njit()
def compared(words: Any, tag: Any) -> Any:
    found = compared_group(words.ctypes.data, tag)
    return found, first_of(found) if found else -1


def test_a_group_tells_which_buckets_have_a_tag_and_which_are_empty() -> None:
    random = np.random.default_rng(4)
    for _ in range(200):
        words = random.integers(0, 3, GROUP_BUCKETS, np.uint64) << np.uint64(32)
        words |= random.integers(0, 2, GROUP_BUCKETS, np.uint64)
        for tag in (0, 1, 2, 3):
            empty = words == 0
            equal = (words >> np.uint64(32) == tag) & ~empty
            bits = np.packbits(np.concatenate([equal, empty]), bitorder="little")
            found, first = compared(words, np.uint64(tag))
            assert found == int(bits.view("<u2")[0])
            assert found & EQUAL == int(bits[0])
            at = np.flatnonzero(np.concatenate([equal, empty]))
            assert first == (at[0] if len(at) else -1)
