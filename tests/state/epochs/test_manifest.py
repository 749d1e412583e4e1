"""Manifests: equal after both directions, whatever they say; what was cut or changed is told."""

import json
from dataclasses import asdict
from types import MappingProxyType

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.state.epochs.manifests import MANIFESTS, small_manifest
from whale_ray.errors import DamagedCheckpointError, InputError
from whale_ray.operators.sinks.base import Staged
from whale_ray.operators.sinks.staged_json import staged_to_json
from whale_ray.state.epochs.manifest import (
    MANIFEST_VERSION,
    ChunkFile,
    InlineChunk,
    OperatorPart,
    chunk_files,
    chunks_of,
    decode_manifest,
    encode_manifest,
)
from whale_ray.state.epochs.sealed_json import seal, unseal

WHOLE = encode_manifest(small_manifest(7, ChunkFile("chunks/a", 3, 9)), ["manifests/b"])


@given(MANIFESTS, st.sets(st.text(max_size=5), max_size=3))
def test_a_manifest_is_equal_after_both_directions(manifest, kept):
    assert decode_manifest(encode_manifest(manifest, kept), "m") == (manifest, kept)


def test_read_only_mappings_can_be_written():
    part = OperatorPart("a", (0,), 1, 0, position=MappingProxyType({"row": 1 << 65}))
    manifest = small_manifest(1, parts=(part,), operators=MappingProxyType({"a": {}}))
    assert decode_manifest(encode_manifest(manifest), "m")[0] == manifest


def test_a_manifest_that_was_cut_short_is_recognized_at_every_length():
    for length in range(len(WHOLE)):
        with pytest.raises(DamagedCheckpointError, match=r"^folder/m (was cut short|is )"):
            decode_manifest(WHOLE[:length], "folder/m")


@given(st.integers(0, len(WHOLE) * 8 - 1))
@example((WHOLE.index(b'"version": ') + len('"version": ')) * 8 + 1)  # its 2 becomes a 0
def test_a_flipped_bit_is_recognized(bit):
    data = bytearray(WHOLE)
    data[bit // 8] ^= 1 << bit % 8
    if bit // 8 <= WHOLE.index(b"\n"):
        # In the first line a bit may also make another kind, version, or white space of it.
        with pytest.raises(InputError, match=r"^m "):
            decode_manifest(bytes(data), "m")
    else:
        with pytest.raises(DamagedCheckpointError, match=r"^m is damaged"):
            decode_manifest(bytes(data), "m")


def test_more_bytes_than_were_written_are_recognized():
    with pytest.raises(DamagedCheckpointError):
        decode_manifest(WHOLE + b" ", "m")


def test_a_newer_version_is_refused_by_name_before_its_content_is_read():
    newer = seal("manifest", MANIFEST_VERSION + 1, ["a", "form", "nobody", "knows"])
    says = rf"^folder/m was written by a newer whale-ray .* is {MANIFEST_VERSION + 1}, "
    with pytest.raises(InputError, match=says):
        decode_manifest(newer, "folder/m")
    with pytest.raises(InputError, match="newer"):
        decode_manifest(newer[:-5], "m")


def test_another_file_of_ours_is_refused_by_name():
    with pytest.raises(InputError, match="m is a claim of whale-ray, not a manifest"):
        decode_manifest(seal("claim", 1, {}), "m")


def test_what_has_the_right_crc_and_no_manifest_in_it_is_refused():
    for content in ({}, {"manifest": {"epoch": 1}, "kept": []}, []):
        with pytest.raises(DamagedCheckpointError, match=r"^m is damaged: it lacks"):
            decode_manifest(seal("manifest", MANIFEST_VERSION, content), "m")


@pytest.mark.parametrize("position", [{"row": float("nan")}, {"row": b"bytes"}])
def test_what_json_cannot_say_is_refused_when_it_is_written(position):
    part = OperatorPart("a", (0,), 1, 0, position=position)
    with pytest.raises((ValueError, TypeError)):
        encode_manifest(small_manifest(1, parts=(part,)))


def test_the_files_are_readable_json():
    head, body = map(json.loads, WHOLE.splitlines())
    assert (head["whale-ray"], head["version"]) == ("manifest", MANIFEST_VERSION)
    assert body["manifest"]["epoch"] == 7
    assert unseal("manifest", MANIFEST_VERSION, WHOLE, "m") == body


def test_all_files_of_an_epoch_are_named():
    chunks = tuple(ChunkFile(f"chunks/{n}", n, n) for n in range(5))
    staged = ({"rows": 1, "payload": asdict(chunks[3])}, {"deep": [{"er": asdict(chunks[4])}]})
    parts = (
        OperatorPart("a", (0,), 1, 0, chunks[:3]),
        OperatorPart("b", (0,), 1, 0, values=chunks[1]),
        OperatorPart("out", (0,), 1, 0, staged=staged),
    )
    assert chunk_files(small_manifest(1, parts=parts)) == {one.name: one for one in chunks}


def test_small_chunks_are_in_the_manifest_and_no_files():
    small = InlineChunk.of("chunks/small", bytes(range(256)))
    large = ChunkFile("chunks/large", 5, 7)
    manifest = small_manifest(1, small, large)
    read, _ = decode_manifest(encode_manifest(manifest), "m")
    assert read == manifest
    assert read.parts[0].chunks[0].data == bytes(range(256))
    assert chunk_files(read) == {"chunks/large": large}
    assert chunks_of(read.parts) == {"chunks/large": large, "chunks/small": small}


def test_a_manifest_of_the_version_before_is_read():
    head, body = WHOLE.split(b"\n", 1)
    before = head.replace(b'"version": 2', b'"version": 1') + b"\n" + body
    assert decode_manifest(before, "m") == decode_manifest(WHOLE, "m")


def test_what_a_sink_really_stages_is_named():
    """A payload that became a file is part of the epoch, and is not removed before it."""
    written = []

    def write(data):
        written.append(ChunkFile("chunks/payload", len(data), 0))
        return written[-1]

    payload = b"x" * 100_000
    values = staged_to_json(Staged(0, 1, len(payload), payload=payload), write)
    part = OperatorPart("out", (0,), 1, 0, staged=(values,))
    assert chunk_files(small_manifest(1, parts=(part,))) == {"chunks/payload": written[0]}
