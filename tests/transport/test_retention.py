"""What is retained behind a ring: bounded, spilled, the same bytes, whatever is asked for."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.transport.links import payload, private_ring, put
from whale_ray.configs.errors import CorruptedMessageError, ResourceError
from whale_ray.transport.channel import Outcome
from whale_ray.transport.mirror import RingTap
from whale_ray.transport.retention import Retention

CAPACITY = 4096
CHUNK = 2048


class Kept:
    """A ring whose frames all go to a retention, and a plain copy of them."""

    def __init__(self, memory_chunks: int, spilled_chunks: int, directory: str = "") -> None:
        self.producer = private_ring(CAPACITY)
        self.tap = RingTap.beside(self.producer)
        self.retention = Retention(
            memory_chunks * CHUNK,
            spilled_chunks * CHUNK,
            CAPACITY,
            directory,
            "stream 7",
            chunk_bytes=CHUNK,
        )
        self.all = bytearray()
        self.ends = [0]

    def keep(self, size: int) -> bool:
        """Make a frame and keep it; False if there is no room."""
        assert put(self.producer, payload(len(self.all), size)) is Outcome.SENT
        start, stop = len(self.all), self.tap.head
        pieces = self.tap.pieces(start, stop)
        if not self.retention.append(start, pieces):
            return False
        self.all += b"".join(pieces)
        self.ends.append(stop)
        self.tap.release(stop)
        return True

    def check(self, chance: random.Random) -> None:
        retention = self.retention
        if retention.empty:
            return
        first, stop = retention.first, retention.stop
        assert (first in self.ends, stop) == (True, len(self.all))
        assert 0 <= retention.spilled_bytes <= stop - first
        start = 64 * chance.randrange(first // 64, stop // 64)
        end = 64 * chance.randrange(start // 64, stop // 64 + 1)
        assert b"".join(retention.pieces(start, end)) == self.all[start:end]
        assert all(piece.readonly for piece in retention.pieces(start, end))
        begin = retention.frame_before(start)
        assert begin in self.ends
        assert begin <= start
        limit, most = begin + 64 * chance.randrange(80), chance.choice([64, 1000, 1 << 20])
        found = retention.whole_frames(begin, limit, most)
        assert found in self.ends
        assert begin <= found <= max(begin, limit)
        following = [one for one in self.ends if one > begin]
        assert found > begin or following[0] > limit
        assert found - begin <= most or found == following[0]


@settings(max_examples=50)
@given(
    seed=st.integers(0, 2**32 - 1),
    rooms=st.sampled_from([(3, 0), (0, 3), (1, 2), (2, 50)]),
)
def test_what_is_kept_is_what_was_made(seed, rooms):
    chance = random.Random(seed)
    kept = Kept(*rooms)
    held_max = 0
    for _ in range(150):
        if not kept.keep(chance.choice([0, 50, 500, 1000])):
            # There is no room: release the oldest bytes, where a source's ring would wait.
            assert kept.retention.refused > 0
            kept.retention.release(chance.randrange(kept.retention.first, len(kept.all) + 1))
            kept.retention.release(kept.retention.stop if not kept.retention.empty else 0)
            assert kept.retention.empty
            break
        kept.check(chance)
        held_max = max(held_max, kept.retention.stop - kept.retention.first)
        if chance.random() < 0.1 and not kept.retention.empty:
            position = chance.randrange(kept.retention.first, kept.retention.stop + 1)
            kept.retention.release(position)
            assert kept.retention.empty or kept.retention.first <= position
            kept.check(chance)
    assert held_max <= sum(rooms) * CHUNK
    kept.retention.close()


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    made = Kept(1, 2, str(tmp_path))
    yield made
    made.retention.close()


def test_memory_comes_first_and_what_is_full_takes_no_more(kept):
    for _ in range(2):
        assert kept.keep(1000)
    assert (kept.retention.stop, kept.retention.spilled_bytes) == (CHUNK, 0)
    for _ in range(4):
        assert kept.keep(1000)
    assert kept.retention.spilled_bytes == 2 * CHUNK
    start = len(kept.all)
    put(kept.producer, payload(start, 1000))
    pieces = kept.tap.pieces(start, kept.tap.head)
    assert not kept.retention.append(start, pieces)
    assert not kept.retention.append(start, pieces)
    assert kept.retention.refused == 1, "it became full once"
    kept.retention.release(CHUNK - 64)
    assert kept.retention.first == 0, "only chunks are given back"
    kept.retention.release(CHUNK)
    assert kept.retention.append(start, pieces)
    assert kept.retention.first == CHUNK


def test_what_was_handed_out_stays_as_it_is(kept):
    for _ in range(6):
        kept.keep(1000)
    pieces = kept.retention.pieces(1024, 5 * 1024)
    kept.retention.release(len(kept.all))
    while kept.keep(900):
        pass
    assert b"".join(pieces) == kept.all[1024 : 5 * 1024]


def test_the_file_has_no_name_and_is_given_back(kept, tmp_path):
    for _ in range(6):
        kept.keep(1000)
    assert list(tmp_path.iterdir()) == []
    file = kept.retention._file
    assert Path(f"/proc/self/fd/{file.fileno()}").stat().st_size == 2 * CHUNK
    kept.retention.release(len(kept.all))
    assert Path(f"/proc/self/fd/{file.fileno()}").stat().st_size == 0


def test_a_gap_is_refused(kept):
    kept.keep(100)
    with pytest.raises(ValueError, match="64 bytes from 64 cannot be kept behind"):
        kept.retention.append(64, (memoryview(bytes(64)),))
    with pytest.raises(ValueError, match="position 4,096 is not kept"):
        kept.retention.pieces(4096, 4160)


def test_an_unwritable_folder_is_reported_and_nothing_is_lost(tmp_path):
    kept = Kept(0, 2, str(tmp_path / "missing"))
    assert not kept.keep(100)
    assert kept.retention.empty
    assert "missing: No such file or directory" in kept.retention.last_failure
    assert kept.retention.refused == 1
    kept.retention.close()


def test_a_damaged_file_is_reported(kept):
    for _ in range(6):
        kept.keep(1000)
    kept.retention._file.truncate(CHUNK)
    message = r"spilled bytes of stream 7 in .* cannot be read: Input/output error; name another"
    with pytest.raises(ResourceError, match=message):
        kept.retention.pieces(2 * CHUNK, 3 * CHUNK)
    kept.retention._file.seek(0)
    kept.retention._file.write(b"\xff" * 64)
    with pytest.raises(CorruptedMessageError, match="of stream 7 holds no frame after position"):
        kept.retention.whole_frames(CHUNK, 2 * CHUNK, 1 << 20)
