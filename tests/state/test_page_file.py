"""PageFile: what lies on the disk in files of its own."""

from __future__ import annotations

import os

import numpy as np

from whale_ray.state.page_file import PageFile


def test_what_lies_on_the_disk_keeps_no_descriptor_open() -> None:
    """A process may have 1,024 by default, and joins that are on the disk have many such files."""
    pages = PageFile("joined", "")
    before = len(os.listdir("/proc/self/fd"))
    content = np.arange(5_000, dtype=np.uint8)
    held = [pages.holding(content) for _ in range(3)]
    arrays = [pages.array(1_000, np.int64) for _ in range(3)]
    assert len(os.listdir("/proc/self/fd")) == before
    for number, array in enumerate(arrays):
        assert not array.any()
        array[:] = number
    assert [int(array.sum()) for array in arrays] == [0, 1_000, 2_000]
    for one in held:
        np.testing.assert_array_equal(one, content)
        assert not one.flags.writeable
