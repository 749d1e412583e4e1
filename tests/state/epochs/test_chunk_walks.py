"""Behind an epoch few folders of chunk files are walked through, and none is forgotten."""

from __future__ import annotations

from whale_ray.state.epochs.retention import ChunkWalks
from whale_ray.state.epochs.store_names import CHUNKS, ManifestName, chunk_folder, chunk_name


def walked(walks: ChunkWalks, newest: ManifestName, folders: int) -> list[str]:
    """Walk behind an epoch, with so many folders that have a file; return those walked through."""
    found = walks.folders("job", newest)
    if found == [CHUNKS]:
        seen = [chunk_name("job", epoch, "a") for epoch in range(1, folders + 1)]
        found = [name.rpartition("/")[0] for name in seen]
    else:
        seen = [f"{folder}/a" for folder in found]
    walks.ended("job", newest, seen)
    return found


def test_the_folders_of_an_epoch_do_not_grow_with_the_number_of_epochs() -> None:
    walks = ChunkWalks()
    counts = [len(walked(walks, ManifestName(1, epoch, "job"), epoch)) for epoch in range(1, 2_001)]
    assert counts[:8] == [1, 2, 3, 4, 5, 6, 7, 8], "few folders are cheap"
    assert sum(counts) <= 10 * len(counts)


def test_between_walks_through_all_each_new_folder_is_walked_through_once() -> None:
    walks = ChunkWalks()
    walked(walks, ManifestName(1, 40, "job"), 40)
    later = [walked(walks, ManifestName(1, epoch, "job"), epoch) for epoch in (41, 44, 45, 46, 47)]
    expected = [[41], [42, 43, 44], [45], [46], [47]]
    assert later == [[chunk_folder("job", epoch) for epoch in epochs] for epochs in expected]
    assert walks.folders("job", ManifestName(1, 48, "job")) == [CHUNKS]


def test_behind_a_walk_that_failed_and_behind_an_earlier_jobs_manifest_all_are_due() -> None:
    walks = ChunkWalks()
    walked(walks, ManifestName(1, 40, "job"), 40)
    assert walks.folders("job", ManifestName(1, 41, "job")) != [CHUNKS]  # and does not end
    assert walks.folders("job", ManifestName(1, 42, "job")) == [CHUNKS]
    walked(walks, ManifestName(1, 42, "job"), 42)
    assert walks.folders("job", ManifestName(1, 43, "other")) == [CHUNKS]
    walks.ended("job", ManifestName(1, 43, "other"), [])
    assert walks.folders("job", ManifestName(2, 1, "job")) == [CHUNKS]
