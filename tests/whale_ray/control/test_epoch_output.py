"""Each part of a sink's output belongs to one epoch, however often workers name it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from whale_ray.control.epoch_output import EpochOutput
from whale_ray.operators.sinks.base import Staged
from whale_ray.operators.sinks.staged_json import staged_to_json
from whale_ray.state.epochs.manifest import ChunkFile, Lineage, Manifest, OperatorPart


def never_loaded(file: ChunkFile) -> bytes:
    raise AssertionError(file)


def part(*names: str, operator_id: str = "out", instance: int = 0) -> OperatorPart:
    staged = tuple(staged_to_json(Staged(instance, 1, path=name)) for name in names)
    return OperatorPart(operator_id, (instance,), 2, 0, staged=staged)


def manifest(epoch: int, parts: tuple[OperatorPart, ...]) -> Manifest:
    return Manifest(epoch, epoch - 1, Lineage("job"), "rows", 0, 1024, parts)


def paths(parts: Iterable[OperatorPart]) -> list[Any]:
    return [one["path"] for each in parts for one in each.staged]


def test_what_an_ended_participant_staged_belongs_to_the_first_epoch_behind_its_end() -> None:
    output = EpochOutput(never_loaded, bounded=False)
    ended = part("tail", instance=1)
    snapshots = (part("a"), ended)
    first = output.parts(snapshots)
    assert paths(first) == ["a", "tail"]
    output.count(manifest(1, first), snapshots)
    second = output.parts((part("b"), ended))
    assert paths(second) == ["b"]
    assert output.staged() == {"out": [Staged(0, 1, path="a"), Staged(1, 1, path="tail")]}


def test_a_large_payload_is_read_from_its_file() -> None:
    files: dict[ChunkFile, bytes] = {}

    def store(data: bytes) -> ChunkFile:
        file = ChunkFile("a", len(data), 0)
        files[file] = data
        return file

    staged = Staged(0, 1, payload=bytes(5_000))
    output = EpochOutput(files.__getitem__, bounded=True)
    json = staged_to_json(staged, store)
    output.count(manifest(1, (OperatorPart("out", (0,), 1, 0, staged=(json,)),)))
    assert files
    assert output.staged() == {"out": [staged]}


def test_an_epoch_that_was_forgotten_leaves_its_output_to_the_next() -> None:
    output = EpochOutput(never_loaded, bounded=False)
    output.parts((part("a"),))  # its manifest was not written
    assert paths(output.parts((part("a", "b"),))) == ["a", "b"]


def test_a_bounded_job_publishes_what_was_staged_although_the_last_epoch_does_not_count() -> None:
    output = EpochOutput(never_loaded, bounded=True)
    output.count(manifest(1, output.parts((part("a"),))))
    output.keep((part("a", "b"), part("c", instance=1), part("d", operator_id="other")))
    found = {sink: [one.path for one in parts] for sink, parts in output.staged().items()}
    assert found == {"out": ["a", "b", "c"], "other": ["d"]}


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 2)), max_size=12), st.booleans())
def test_every_part_is_committed_once(epochs: list[tuple[bool, int]], tells_again: bool) -> None:
    """A worker names what it staged until it hears that an epoch counts, or once more."""
    committed: list[Any] = []
    output, waiting, number = EpochOutput(never_loaded, bounded=False), [], 0
    heard: list[str] = []
    for epoch, (counts, rows) in enumerate(epochs, 1):
        for _ in range(rows):
            number += 1
            waiting.append(f"part-{number}")
        snapshots = (part(*heard, *waiting),)
        made = output.parts(snapshots)
        if counts:
            output.count(manifest(epoch, made), snapshots)
            committed += paths(made)
            heard = list(waiting) if tells_again else []
            waiting = []
    assert committed == [f"part-{n}" for n in range(1, number + 1)][: len(committed)]
    assert len(committed) + len(waiting) == number


def test_a_bounded_job_names_all_that_it_has_staged_in_every_epoch() -> None:
    output = EpochOutput(never_loaded, bounded=True)
    for epoch, names in enumerate((["a"], [], ["b", "c"]), 1):
        snapshots = (part(*names), part(instance=1))
        made = output.parts(snapshots)
        output.count(manifest(epoch, made), snapshots)
    assert paths(made) == ["a", "b", "c"]
    restored = EpochOutput(never_loaded, bounded=True)
    restored.count(manifest(3, made))
    assert paths(restored.parts((part("d"),))) == ["a", "b", "c", "d"]
