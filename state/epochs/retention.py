"""Which files of a checkpoint store nobody needs any more. Pure.

A file goes only if it is known that nothing lists it, never because something is not seen:

- Manifests are known by name from two sources, since the listing of an object store may be out of
  date: the listing, and the newest manifest, which names those beside it.
- Chunk files of a job that are younger than its newest manifest belong to the epoch under way,
  or to an epoch whose manifest is not seen. Those of an earlier job go only once the present one
  has a manifest of its own, behind which nobody goes back unasked.
- What was begun as a chunk file and never finished, since its worker was killed, goes with the
  files of its epoch. Who still writes it, for an epoch that counts without it, finds it gone.
- A chunk file that an epoch does not list is not listed by any later epoch of its job: what an
  operator gave up, it does not take back.

Not all folders are walked through behind each epoch, see `ChunkWalks`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from .manifest import Manifest, chunk_files
from .store_names import (
    CHUNKS,
    ChunkName,
    ManifestName,
    chunk_folder,
    claim_number,
    manifest_names,
)

__all__ = ["ChunkWalks", "Listed", "kept_manifests", "removable_chunks", "removable_leftovers"]


_FOLDERS_EACH = 8


class ChunkWalks:
    """Which folders of chunk files are walked through, so that an epoch costs no more with many.

    All of them, and then for every eighth of them an epoch goes by for which only those are that
    were written for since. Of older ones, files go with the manifests that list them; what somebody
    writes late goes with the next walk through all.
    """

    def __init__(self) -> None:
        self._spared = 0
        self._behind = 0  # the epoch up to which all folders of the job are known
        self._next_spared = 0

    def folders(self, job: str, newest: ManifestName | None) -> list[str]:
        """Return the folders for the present walk.

        Args:
            job: the id of the job that has the claim.
            newest: its newest durable manifest, or one of an earlier job; None if there is none.

        Until `ended` is called, the walk counts as failed, and the next one is through all.
        """
        spared, self._spared = self._spared, 0
        if not spared or newest is None or newest.job != job:
            self._next_spared = -1
            return [CHUNKS]
        self._next_spared = spared - 1
        return [chunk_folder(job, epoch) for epoch in range(self._behind + 1, newest.epoch + 1)]

    def ended(self, job: str, newest: ManifestName | None, chunks: Iterable[str]) -> None:
        """Note that a walk for which `folders` was called with these has found these files."""
        if newest is None or newest.job != job:
            return
        if self._next_spared < 0:
            folders = {name.rpartition("/")[0] for name in chunks}
            self._next_spared = len(folders) // _FOLDERS_EACH
        self._spared, self._behind = self._next_spared, newest.epoch


@dataclass(frozen=True, slots=True)
class Listed:
    """What retention needs of a manifest; the rest, such as chunks without files, may be large.

    Attributes:
        job: the id of the job that wrote it.
        epoch: its number.
        savepoint: whether a user asked for it.
        files: the names of all chunk files that it lists.
    """

    job: str
    epoch: int
    savepoint: bool
    files: frozenset[str]

    @classmethod
    def of(cls, manifest: Manifest) -> Listed:
        """Return what it needs of this one."""
        files = frozenset(chunk_files(manifest))
        return cls(manifest.lineage.job, manifest.epoch, manifest.savepoint, files)


def kept_manifests(
    manifests: Mapping[str, Listed],
    durable: Collection[str],
    keep: int,
    needed: Collection[str] = (),
) -> frozenset[str]:
    """Return which manifests stay.

    Args:
        manifests: all that are in the store, by name.
        durable: of these, those of which it is known; others are of epochs that were forgotten,
            and stay while they are newer than all of these.
        keep: how many durable ones stay, savepoints not counted.
        needed: those that a running job may go back to.
    """
    order = manifest_names(manifests)
    savepoints = {str(name) for name in order if manifests[str(name)].savepoint}
    known = [name for name in order if str(name) in durable]
    counted = [str(name) for name in known if str(name) not in savepoints]
    younger = (str(name) for name in order if not known or name > known[-1])
    stay = {*map(str, known[-1:]), *savepoints, *counted[-keep:], *needed, *younger}
    return frozenset(stay & manifests.keys())


def removable_chunks(chunks: Iterable[str], kept: Mapping[str, Listed], job: str) -> frozenset[str]:
    """Return which chunk files can go.

    Args:
        chunks: the names of all files in the folder of chunks, also of unfinished ones.
        kept: the manifests that stay, by name.
        job: the id of the job that has the claim; no other writes into the folder.
    """
    listed: frozenset[str] = frozenset().union(*(one.files for one in kept.values()))
    newest: dict[str, int] = {}
    for one in kept.values():
        newest[one.job] = max(one.epoch, newest.get(one.job, 0))
    removable = set()
    for name in chunks:
        found = ChunkName.of(name)
        if found is None or name in listed:
            continue
        is_of_earlier_job = found.job != job and job in newest
        if is_of_earlier_job or found.epoch <= newest.get(found.job, 0):
            removable.add(name)
    return frozenset(removable)


def removable_leftovers(
    claims_and_notes: Iterable[str], unfinished: Iterable[str], claim: int
) -> list[str]:
    """Return which claims, notes and unfinished manifests are of claims before this one.

    Args:
        claims_and_notes: the names of all claims, and of all notes of the newest manifest.
        unfinished: the names of manifests that were begun and never finished.
        claim: the number of the present claim.
    """
    begun = map(ManifestName.of, unfinished)
    return [
        *(name for name in claims_and_notes if 0 < claim_number(name) < claim),
        *(str(name) for name in begun if name is not None and name.claim < claim),
    ]
