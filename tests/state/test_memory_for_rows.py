"""Memory for rows that wait is as much as the state and its index leave."""

from __future__ import annotations

import pytest

from whale_ray.state.memory_for_rows import MemoryForRows


class State:
    """Has so many bytes of memory in all, of which the index takes some."""

    def __init__(self, memory_bytes: int, index_bytes: int = 0) -> None:
        self.free_bytes, self.index_bytes = memory_bytes - index_bytes, index_bytes

    @property
    def has_room_for_keys(self) -> bool:
        return self.index_bytes // 4 <= self.free_bytes

    def set_aside(self, nbytes: int) -> bool:
        if nbytes > self.free_bytes:
            return False
        self.free_bytes -= nbytes
        return True

    def give_back(self, nbytes: int) -> None:
        self.free_bytes += nbytes

    def grow(self, nbytes: int) -> None:
        self.index_bytes += nbytes
        self.free_bytes -= nbytes


def test_half_is_taken_and_given_back_as_the_index_grows_until_an_eighth_is_left() -> None:
    state = State(1 << 20)
    memory = MemoryForRows(state, 1 << 20, bytes_max=1 << 30)
    assert memory.take()
    taken = [memory.nbytes]
    for _ in range(14):
        state.grow(1 << 16)
        memory.leave_room()
        taken.append(memory.nbytes)
        assert state.free_bytes == (1 << 20) - state.index_bytes - memory.nbytes
    assert sorted(set(taken), reverse=True) == [1 << 19, 1 << 18, 1 << 17]
    assert taken == sorted(taken, reverse=True)
    assert memory.take()
    assert memory.nbytes == 1 << 17, "what is taken is not taken again"
    memory.close()
    assert state.free_bytes == (1 << 20) - state.index_bytes


@pytest.mark.parametrize(
    ("index_bytes", "bytes_min", "bytes_max", "taken"),
    [
        (0, 1, 1 << 30, 1 << 19),
        (0, 1, 1000, 1000),
        (600_000, 1, 1 << 30, 1 << 18),
        (900_000, 1, 1 << 30, 1 << 15),  # of an eighth, for which there is room, a quarter
        (900_000, 1 << 17, 1 << 30, 1 << 17),
        (900_000, 1 << 18, 1 << 30, 0),
        ((1 << 20) - 1, 1, 1 << 30, 0),
    ],
)
def test_the_first_share_for_which_there_is_room_is_taken(
    index_bytes: int, bytes_min: int, bytes_max: int, taken: int
) -> None:
    state = State(1 << 20, index_bytes)
    memory = MemoryForRows(state, 1 << 20, bytes_min=bytes_min, bytes_max=bytes_max)
    assert memory.take() == bool(taken)
    assert memory.nbytes == taken
    memory.close()
    assert state.free_bytes == (1 << 20) - index_bytes
