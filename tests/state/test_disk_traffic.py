"""Whether rows are gathered for passes over state on the disk: by what the disk moves for them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whale_ray.state.disk_traffic import ROWS_MEASURED, DiskTraffic, Moved

PAGE = 4096
STATE_BYTES = 64 << 20


class Disk:
    """What a thread has moved, and the traffic of one operator that is told of it."""

    def __init__(self, on_disk_bytes: int = STATE_BYTES) -> None:
        self.moved = Moved(0, 0)
        self.traffic = DiskTraffic(lambda: on_disk_bytes, lambda: self.moved)

    def take(self, rows: int, *, read: int = 0, written: int = 0) -> bool:
        """Take rows, for which so many bytes are read and written; return whether it is heavy."""
        with self.traffic.measured(rows):
            self.moved = Moved(self.moved.read_bytes + read, self.moved.written_bytes + written)
        return self.traffic.is_heavy


def test_state_whose_pages_are_in_memory_is_light_however_many_rows_come() -> None:
    disk = Disk()
    assert not any(disk.take(ROWS_MEASURED) for _ in range(1_000))


def test_a_page_read_for_each_row_is_soon_too_much_and_is_so_until_passes_read_none() -> None:
    disk = Disk()
    assert disk.take(ROWS_MEASURED, read=ROWS_MEASURED * PAGE)
    for _ in range(100):
        assert disk.take(1 << 18, read=STATE_BYTES, written=STATE_BYTES)  # passes
    rows = 0
    while disk.take(1 << 18):
        rows += 1 << 18
    assert 0 < rows <= 4 * STATE_BYTES // 256


def test_pages_that_the_kernel_writes_now_and_then_are_not_too_much() -> None:
    """All pages become unlike the disk's again after each time that they were written."""
    disk = Disk()
    for _ in range(100):
        assert not disk.take(ROWS_MEASURED, written=STATE_BYTES)
        assert not any(disk.take(ROWS_MEASURED) for _ in range(40))


def test_a_page_written_for_each_row_is_too_much_in_the_end() -> None:
    """As where the kernel writes pages as fast as rows change them."""
    disk = Disk()
    written = 0
    while not disk.take(1_000, written=1_000 * PAGE):
        written += 1_000 * PAGE
    assert STATE_BYTES < written < 3 * STATE_BYTES


@pytest.mark.parametrize("on_disk_bytes", [1 << 20, 1 << 40])
def test_much_state_is_known_to_come_from_the_disk_long_before_a_pass_is_paid(
    on_disk_bytes: int,
) -> None:
    disk, read = Disk(on_disk_bytes), 0
    while not disk.take(100, read=100 * PAGE):
        read += 100 * PAGE
    assert read <= min(on_disk_bytes // 4, 32 << 20)


def test_nothing_is_measured_while_all_is_in_memory() -> None:
    disk = Disk(on_disk_bytes=0)
    assert not disk.take(1, read=1 << 40)


@given(
    st.lists(
        st.tuples(st.integers(0, 10**6), st.integers(0, 1 << 28), st.integers(0, 1 << 28)),
        max_size=50,
    )
)
def test_what_is_moved_before_rows_are_gathered_costs_no_more_than_a_pass_and_the_last_rows(
    steps: list[tuple[int, int, int]],
) -> None:
    disk, cost = Disk(), 0
    for rows, read, written in steps:
        was_heavy = disk.traffic.is_heavy
        is_heavy = disk.take(rows, read=read, written=written)
        if was_heavy:
            break
        cost += 10 * read + written - 256 * rows
        assert is_heavy or cost <= 2 * STATE_BYTES
