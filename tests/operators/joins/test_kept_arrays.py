"""Arrays beside kept rows: on the disk they hold what they held, in one mapping together."""

from __future__ import annotations

import mmap
import resource
from pathlib import Path

import numpy as np
import pytest

from whale_ray.configs.errors import ResourceError
from whale_ray.operators.joins.kept_arrays import KeptArrays
from whale_ray.state.page_file import PageFile


def mapped_files() -> int:
    """Return how many mappings of nameless files the process has."""
    return Path("/proc/self/maps").read_text().count("(deleted)")


def test_arrays_on_the_disk_are_one_mapping() -> None:
    held = {"a": np.arange(5_000), "b": np.arange(7, dtype=np.int32), "c": np.empty(0, np.bool_)}
    kept, before = KeptArrays(**held), mapped_files()
    kept.spill(PageFile("join"))
    assert mapped_files() == before + 1
    assert (kept.nbytes, kept.spilled_bytes) == (0, 8 * 5_000 + 4 * 7)
    for name, array in held.items():
        np.testing.assert_array_equal(kept[name], array)
    kept["b"][:] = 9
    kept.resize("a", 6_000, 5_000)
    kept["a"][5_000:] = 1
    np.testing.assert_array_equal(kept["a"], [*range(5_000), *[1] * 1_000])
    np.testing.assert_array_equal(kept["b"], [9] * 7)
    del kept
    assert mapped_files() == before


def test_where_no_mapping_is_left_the_message_names_the_limits_and_not_the_folder() -> None:
    pages, limits = PageFile("join"), resource.getrlimit(resource.RLIMIT_AS)
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE
    resource.setrlimit(resource.RLIMIT_AS, (mapped + (8 << 20), limits[1]))
    try:
        with pytest.raises(ResourceError, match=r"raise vm\.max_map_count") as raised:
            pages.array(32 << 20, np.uint8)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
    assert "runtime.spill_directory" not in str(raised.value)
