"""Arrays beside kept rows: on the disk they hold what they held, in one mapping together."""

from __future__ import annotations

import mmap
import resource
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whale_ray.configs.errors import ResourceError
from whale_ray.operators.joins.kept_arrays import KeptArrays
from whale_ray.state.page_file import PageFile


def mapped_files() -> int:
    """Return how many mappings of nameless files the process has."""
    return Path("/proc/self/maps").read_text().count("(deleted)")


def kept_arrays(held: Mapping[str, npt.NDArray[Any]]) -> KeptArrays:
    """Return arrays that hold what these do."""
    kept = KeptArrays({name: array.dtype for name, array in held.items()})
    kept.resize({name: len(array) for name, array in held.items()}, {})
    for name, array in held.items():
        kept[name][:] = array
    return kept


def test_arrays_on_the_disk_are_one_mapping_also_when_they_have_grown() -> None:
    held = {"a": np.arange(5_000), "b": np.arange(7, dtype=np.int32), "c": np.empty(0, np.bool_)}
    kept, before = kept_arrays(held), mapped_files()
    in_memory = kept.nbytes
    assert in_memory >= 8 * 5_000 + 4 * 7
    kept.spill(PageFile("join"))
    assert mapped_files() == before + 1
    assert (kept.nbytes, kept.spilled_bytes) == (0, in_memory)
    for name, array in held.items():
        np.testing.assert_array_equal(kept[name], array)
    kept["b"][:] = 9
    kept.resize({"a": 6_000}, {"a": 5_000, "b": 7})
    kept["a"][5_000:] = 1
    np.testing.assert_array_equal(kept["a"], [*range(5_000), *[1] * 1_000])
    np.testing.assert_array_equal(kept["b"], [9] * 7)
    assert mapped_files() == before + 1
    del kept
    assert mapped_files() == before


def test_a_view_of_before_stays_as_it_is_when_the_arrays_are_moved() -> None:
    kept = kept_arrays({"a": np.arange(3), "b": np.arange(5, dtype=np.uint8)})
    before, version = kept["a"], kept.version
    kept.resize({"a": 100}, {"a": 2})
    kept["a"][:3] = 7
    np.testing.assert_array_equal(before, range(3))
    assert kept.version > version


@given(
    sizes=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), min_size=1, max_size=6),
    on_disk_from=st.integers(0, 6),
)
def test_arrays_never_overlap_and_are_at_their_addresses(
    sizes: list[tuple[int, int]], on_disk_from: int
) -> None:
    kept = KeptArrays({"a": np.dtype(np.int64), "b": np.dtype(np.bool_)})
    expected: dict[str, list[int]] = {"a": [], "b": []}
    for turn, (a, b) in enumerate(sizes):
        if turn == on_disk_from:
            kept.spill(PageFile("join"))
        used = {"a": min(a, kept.size("a")), "b": min(b, kept.size("b"))}
        kept.resize({"a": a, "b": b}, used)
        for name, size in (("a", a), ("b", b)):
            array = kept[name]
            assert array.tolist()[: used[name]] == expected[name][: used[name]]
            array[:] = expected[name] = [turn % 2] * size
            assert len(array) == kept.size(name) == size
            assert kept.addresses[name] == array.ctypes.data or not size
            assert array.ctypes.data % array.itemsize == 0
        assert kept["a"].tolist() == expected["a"]


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
