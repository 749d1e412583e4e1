"""How the files of a checkpoint store are named; all that retention must know is in the names.

::

    newest/000003                              which manifest of the third claim is durable
    manifests/000003-000000000017-JOB          written under the third claim, epoch 17
    chunks/JOB/000000000017/NAME-1a2b3c4d      written for epoch 17; the end is the CRC of its bytes
    claims/000003                              the third claim of the folder, and its heartbeat
    jobs/JOB                                 what the job was submitted as
    lock                                       locked while a job on this host uses the folder
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple
from urllib.parse import quote, unquote

__all__ = [
    "CHUNKS",
    "CLAIMS",
    "JOBS",
    "LOCK",
    "MANIFESTS",
    "NEWEST",
    "ChunkName",
    "ManifestName",
    "chunk_folder",
    "chunk_name",
    "claim_name",
    "claim_number",
    "job_name",
    "manifest_names",
    "newest_name",
]

MANIFESTS = "manifests"
CHUNKS = "chunks"
CLAIMS = "claims"
NEWEST = "newest"
JOBS = "jobs"
LOCK = "lock"

_MANIFEST = re.compile(rf"{MANIFESTS}/(\d{{6,}})-(\d{{12,}})-([^/]+)")
_CHUNK = re.compile(rf"{CHUNKS}/([^/]+)/(\d{{12,}})/([^/]+)")


class ManifestName(NamedTuple):
    """What a manifest's name says; in the order of time, since each claim's number is higher.

    Attributes:
        claim: the number of the claim under which it was written.
        epoch: its epoch.
        job: the id of the job.
    """

    claim: int
    epoch: int
    job: str

    def __str__(self) -> str:
        return f"{MANIFESTS}/{self.claim:06d}-{self.epoch:012d}-{quote(self.job, safe='')}"

    @classmethod
    def of(cls, name: str) -> ManifestName | None:
        """Return what a file's name says; None if it is not a manifest's."""
        found = _MANIFEST.fullmatch(name)
        return found and cls(int(found[1]), int(found[2]), unquote(found[3]))


def manifest_names(names: Iterable[str]) -> list[ManifestName]:
    """Return what the names of files say that are manifests', each once, the newest last."""
    found = map(ManifestName.of, names)
    return sorted({name for name in found if name is not None})


class ChunkName(NamedTuple):
    """What a chunk file's name says.

    Attributes:
        job: the id of the job that wrote it.
        epoch: for which it was written; later ones may continue listing it.
        label: the rest of it.
    """

    job: str
    epoch: int
    label: str

    def __str__(self) -> str:
        return f"{chunk_folder(self.job, self.epoch)}/{quote(self.label, safe='')}"

    @classmethod
    def of(cls, name: str) -> ChunkName | None:
        """Return what a file's name says; None if it is not a chunk's."""
        found = _CHUNK.fullmatch(name)
        return found and cls(unquote(found[1]), int(found[2]), unquote(found[3]))


def chunk_folder(job: str, epoch: int) -> str:
    """Return the folder of the chunk files that a job writes for an epoch."""
    return f"{CHUNKS}/{quote(job, safe='')}/{epoch:012d}"


def chunk_name(job: str, epoch: int, label: str) -> str:
    """Return the name under which a worker writes a chunk file.

    Args:
        job: the id of the job.
        epoch: whose snapshot it is first part of.
        label: tells it from the others of that epoch: stage, worker, operator, number; any text.
    """
    return str(ChunkName(job, epoch, label))


def job_name(job: str) -> str:
    """Return the name of the file with what a job was submitted as."""
    return f"{JOBS}/{quote(job, safe='')}"


def claim_name(number: int) -> str:
    """Return the name of the file of a claim."""
    return f"{CLAIMS}/{number:06d}"


def newest_name(number: int) -> str:
    """Return the name of the file that names the newest durable manifest of a claim."""
    return f"{NEWEST}/{number:06d}"


def claim_number(name: str) -> int:
    """Return the number of the claim that a file in `claims` or `newest` is of; 0 if of none."""
    number = name.rpartition("/")[2]
    return int(number) if number.isdecimal() else 0
