"""ChunkLog: where chunks lie, and how far references reach."""

from __future__ import annotations

from tests.state.stores import LAYOUT, keys_batch
from whale_ray.state.budget import StateBudget
from whale_ray.state.log import CHUNK_BYTES_MIN, ChunkLog
from whale_ray.state.store import KeyedStore
from whale_ray.transport.wire.column import Column


def test_places_of_chunks_that_grow_are_used_again() -> None:
    """A heap that is compacted takes one chunk for all of its values, each time a larger one."""
    chunks = ChunkLog(StateBudget(64 * CHUNK_BYTES_MIN), "texts")
    for granules in range(1, 65):
        chunks.free(chunks.take(granules * CHUNK_BYTES_MIN, 0))
    kept = [chunks.take(CHUNK_BYTES_MIN, 0) for _ in range(64)]
    assert len({chunk.start for chunk in kept}) == 64


def test_texts_and_values_are_found_wherever_the_log_ends() -> None:
    """References have 40 bits for a position, and all of the log lies within these."""
    large = StateBudget(1 << 38)
    keys = [(f"a key of some length {number}", 1.0) for number in range(50)]
    hashes, batch = keys_batch(keys)
    for begin in (0, 1 << 39, (1 << 40) - (1 << 20)):
        store = KeyedStore(LAYOUT, large, "texts")
        store.reserve(len(keys))
        store.slots(*keys_batch([(None, 1.0)]))  # a chunk of records, whose numbers have 32 bits
        store._log._end = max(begin, store._log._end)
        slots = store.slots(hashes, batch)
        values = [f"value {number}".encode() for number in range(50)]
        store.write_values("note", slots, Column.of(values, "binary"))
        assert store.find(hashes, batch).tolist() == slots.tolist()
        assert store.keys_of(slots).column("name").to_pylist() == [key for key, _ in keys]
        every = store.pick_values(
            "note", slots, Column.of([b"w"] * 50, "binary"), slots * 0, greatest=True, later=True
        )
        assert every.all()
        assert len(store._log.memory) <= 1 << 40
        store.drop()
