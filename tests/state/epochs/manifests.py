"""Manifests for tests: whole ones, small, and strategies for random ones."""

from __future__ import annotations

from hypothesis import strategies as st

from whale_ray.state.epochs.manifest import (
    ChunkFile,
    InlineChunk,
    Lineage,
    Manifest,
    OperatorPart,
)

NAMES = st.text(max_size=8)
INTEGERS = st.integers(-(1 << 70), 1 << 70)
JSON = st.recursive(
    st.none() | st.booleans() | INTEGERS | st.floats(allow_nan=False, allow_infinity=False) | NAMES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)
RECORDS = st.dictionaries(NAMES, JSON, max_size=3)
FILES = st.builds(ChunkFile, NAMES, st.integers(0, 1 << 50), st.integers(0, (1 << 32) - 1))
CHUNKS = FILES | st.builds(InlineChunk.of, NAMES, st.binary(max_size=20))
PARTS = st.builds(
    OperatorPart,
    operator_id=NAMES,
    instances=st.lists(st.integers(0, 999), max_size=4).map(tuple),
    parallelism=st.integers(1, 999),
    watermark_ns=st.integers(-(1 << 63), (1 << 63) - 1),
    chunks=st.lists(CHUNKS, max_size=3).map(tuple),
    values=st.none() | CHUNKS,
    position=st.none() | RECORDS,
    staged=st.lists(RECORDS, max_size=2).map(tuple),
)
LINEAGES = st.builds(
    Lineage,
    job=NAMES,
    restored=st.lists(st.tuples(NAMES, st.integers(0, 1 << 40)), max_size=3).map(tuple),
)
MANIFESTS = st.builds(
    Manifest,
    epoch=st.integers(1, 1 << 40),
    previous=st.integers(0, 1 << 40),
    lineage=LINEAGES,
    topology=NAMES,
    created_ms=st.integers(0, 1 << 45),
    virtual_nodes=st.integers(1, 1 << 15),
    parts=st.lists(PARTS, max_size=3).map(tuple),
    operators=st.dictionaries(NAMES, RECORDS, max_size=3),
    savepoint=st.booleans(),
    stopped=st.booleans(),
    finished=st.booleans(),
    versions=st.dictionaries(NAMES, NAMES, max_size=2),
)


def small_manifest(epoch: int, *chunks: ChunkFile, job: str = "job-1", **more) -> Manifest:
    """Return the manifest of an epoch that consists of some chunk files."""
    part = OperatorPart("count", (0, 1), 2, 5, chunks)
    values = {
        "epoch": epoch,
        "previous": epoch - 1,
        "lineage": Lineage(job),
        "topology": "auction",
        "created_ms": 1_000 * epoch,
        "virtual_nodes": 128,
        "parts": (part,),
    }
    return Manifest(**values | more)
