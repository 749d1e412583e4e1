"""What sinks have staged survives as JSON, whatever bytes it has."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whale_ray.operators.sinks.base import Staged
from whale_ray.operators.sinks.staged_json import staged_from_json, staged_to_json
from whale_ray.state.epochs.checkpoint_store import CheckpointStore
from whale_ray.state.epochs.manifest import Lineage, Manifest, OperatorPart
from whale_ray.state.epochs.store_names import chunk_name

_PARTS = st.builds(
    Staged,
    instance=st.integers(0, 2**40),
    rows=st.integers(0, 2**62),
    nbytes=st.integers(0, 2**62),
    schema=st.none() | st.binary(max_size=40),
    path=st.none() | st.text(max_size=20),
    payload=st.none() | st.binary(max_size=40),
    inode=st.none() | st.integers(0, 2**62),
    epoch=st.none() | st.integers(1, 2**40),
)


@given(_PARTS)
def test_a_part_comes_back_from_json_as_it_was(part: Staged) -> None:
    text = json.dumps(staged_to_json(part))
    assert staged_from_json(json.loads(text)) == part


def test_what_has_its_default_is_left_out() -> None:
    assert staged_to_json(Staged(2, 5)) == {"instance": 2, "rows": 5}


def test_a_large_payload_is_in_a_chunk_file_that_the_manifest_keeps(tmp_path: Path) -> None:
    store = CheckpointStore.at(str(tmp_path))
    claim = store.take_claim("a", "t", beats=False)
    parts = [Staged(0, 1, payload=b"x" * size, epoch=1) for size in (10, 10_000)]
    staged = [
        staged_to_json(one, lambda data: store.write_chunk(chunk_name("a", 1, "out"), data))
        for one in parts
    ]
    part = OperatorPart("out", (0,), 1, 0, staged=tuple(staged))
    manifest = Manifest(1, 0, Lineage("a"), "t", 0, 16, (part,))
    store.read_manifest(store.write_manifest(manifest))
    assert store.remove_unlisted(keep=1) == 0
    claim.close()
    read = store.newest()
    assert read is not None
    found = [staged_from_json(one, store.read_chunk) for one in read.parts[0].staged]
    assert found == parts
    with pytest.raises(ValueError, match="chunk file"):
        staged_from_json(read.parts[0].staged[1])
    claim.close()
