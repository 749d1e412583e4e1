"""The store of checkpoints: chunk files, and manifests that list them, below one folder.

A manifest counts once `write_manifest` has returned. Then it is durable, and so is the note that
names it: whoever looks for the newest one later can tell a manifest that was never finished, which
it passes over, from one that was whole and is damaged, which it refuses.
"""

from __future__ import annotations

import logging
import threading
import zlib
from collections.abc import Collection, Iterable
from dataclasses import replace

from ...configs.errors import DamagedCheckpointError, InputError
from ...transport.clock import Clock, SystemClock
from .claim import Claim, check_not_in_use
from .claim_rules import refusal_of_folder
from .epoch_commands import RestorePoint
from .local_files import LocalFiles
from .manifest import (
    ChunkFile,
    InlineChunk,
    Manifest,
    chunk_files,
    decode_manifest,
    encode_manifest,
)
from .newest_note import NewestNote, read_note, write_note
from .retention import ChunkWalks, Listed, kept_manifests, removable_chunks, removable_leftovers
from .store_files import StoreFiles, files_at
from .store_names import (
    CLAIMS,
    JOBS,
    MANIFESTS,
    NEWEST,
    ChunkName,
    ManifestName,
    job_name,
    manifest_names,
)
from .submitted_jobs import SubmittedJobs

__all__ = ["CheckpointStore"]

_RESTORE_ANOTHER = "restore from another epoch or savepoint (`whale-ray state` lists them)"

_log = logging.getLogger(__name__)


class CheckpointStore:
    """Chunk files and manifests below a folder. Many may read; one job writes, see `take_claim`.

    Methods may be called from several threads.

    Args:
        files: the folder.

    Attributes:
        claim: what `take_claim` has taken.
        jobs: what jobs were submitted as.
    """

    def __init__(self, files: StoreFiles) -> None:
        self._files = files
        self.jobs = SubmittedJobs(files)
        self.claim: Claim | None = None
        self._lock = threading.Lock()
        # What the job that has the claim knows itself: which manifests are durable, and what those
        # say that it has written or read. A name never stands for another list of files.
        self._durable: frozenset[str] | None = None
        self._known: dict[str, Listed] = {}
        self._walks = ChunkWalks()
        # The files of jobs that were submitted before the one that has the claim took it.
        self._former_jobs: frozenset[str] = frozenset()
        self._noted = NewestNote(0, None)  # before any claim

    @classmethod
    def at(cls, url: str) -> CheckpointStore:
        """Return the store at a path of a local directory, or at a URL that fsspec knows.

        Nothing is read or written.

        Raises:
            ResourceError: fsspec, or what it takes for this kind of URL, is not installed.
            InputError: the URL is not understood.
        """
        return cls(files_at(url))

    @property
    def url(self) -> str:
        """The folder's absolute path, or its URL."""
        return self._files.url

    # --- the claim --------------------------------------------------------------------------------

    def take_claim(
        self,
        job: str,
        topology: str,
        *,
        restore: RestorePoint | None = None,
        take_over: bool = False,
        clock: Clock | None = None,
        beats: bool = True,
    ) -> Claim:
        """Take the folder for a job, which then may write manifests; close the claim at its end.

        Args:
            job: the id of the job.
            topology: its name.
            restore: where the user lets it continue.
            take_over: also from a job that is alive; it can write and commit nothing any more.
            clock: whose wall time is that of the heartbeats.
            beats: whether a thread renews the claim; else `Claim.beat` must be called often enough.

        Raises:
            OutputError: another job uses the folder, or it cannot be written to.
            InputError: it holds checkpoints of another job or topology, and the job does not
                continue from any of them; or it cannot be read.
            DamagedCheckpointError: the newest manifest is damaged, and the user names none.
        """
        claim = Claim.take(
            self._files, job, topology, clock=clock or SystemClock(), take_over=take_over
        )
        try:
            noted = NewestNote(claim.number, self._begin_from(job, topology, restore))
            former_jobs = self._files.names(JOBS)
            write_note(self._files, noted)
        except BaseException:
            claim.close()
            raise
        self.claim, self._durable, self._known = claim, None, {}
        self._walks, self._noted = ChunkWalks(), noted
        self._former_jobs = frozenset(former_jobs) - {job_name(job)}
        if beats:
            claim.start_beating()
        return claim

    def begin_attempt(self) -> None:
        """Let no manifest count any more that was written until now, and comes late.

        Behind the newest one, an attempt publishes what a late one may name as well. To a local
        directory nothing comes late. Raises OutputError, and what `Claim.check` and `newest` do.
        """
        claim = self._claimed()
        if not isinstance(self._files, LocalFiles):
            claim.advance()
            found = self._newest(None)
            self._note(NewestNote(claim.number, None if found is None else found[0]))

    def check_claimable(
        self, job: str, topology: str, restore: RestorePoint | None, *, take_over: bool
    ) -> None:
        """Raise what `take_claim` would raise, as far as that is certain without taking it."""
        if not take_over:
            check_not_in_use(self._files, job, SystemClock())
        self._begin_from(job, topology, restore)

    def check_new(self, job: str, topology: str, *, take_over: bool) -> None:
        """Raise what `take_claim` would raise for a job that restores nothing."""
        if take_over or self._newest(None) is None:  # a job that is alive keeps its claim
            self._begin_from(job, topology, None)
        else:
            self.take_claim(job, topology, beats=False).close()

    def _begin_from(
        self, job: str, topology: str, restore: RestorePoint | None
    ) -> ManifestName | None:
        """Return the newest manifest when a claim is taken; refuse a folder of others."""
        is_restored = restore is not None and restore.url == self.url
        try:
            found = self._newest(None)
        except DamagedCheckpointError:
            note = read_note(self._files)
            if not is_restored or note is None:
                raise
            return note.name
        newest = None if found is None else found[1]
        if restore is not None and found is not None:
            is_restored = is_restored or _is_copy(found[0], restore)
        refusal = refusal_of_folder(
            newest, job=job, topology=topology, is_restored=is_restored, url=self.url
        )
        if refusal:
            raise InputError(refusal)
        return None if found is None else found[0]

    # --- chunks -----------------------------------------------------------------------------------

    def write_chunk(self, name: str, data: bytes) -> ChunkFile:
        """Write a chunk file, durably; from any thread of any process of the job.

        Args:
            name: of `store_names.chunk_name`. The CRC of the data is added to it, so that no file
                is ever replaced by another one.
            data: its bytes.

        Raises:
            OutputError: it cannot be written, such as for want of room.
        """
        if ChunkName.of(name) is None:
            msg = f"{name!r} is not the name of a chunk file"
            raise ValueError(msg)
        crc32 = zlib.crc32(data)
        file = ChunkFile(f"{name}-{crc32:08x}", len(data), crc32)
        self._files.put(file.name, data)
        return file

    def read_chunk(self, file: ChunkFile) -> bytes:
        """Return the bytes of a chunk: of its file, or those that came with the manifest.

        Raises:
            DamagedCheckpointError: it is missing, or is not what was written.
            InputError: the folder cannot be read.
        """
        if isinstance(file, InlineChunk):
            return file.data
        data = self._files.get(file.name)
        if data is None:
            msg = f"the checkpoint folder {self.url!r} lacks {file.name}; {_RESTORE_ANOTHER}"
            raise DamagedCheckpointError(msg)
        if len(data) != file.nbytes:
            what = f"has {len(data):,} bytes instead of {file.nbytes:,}"
        elif zlib.crc32(data) != file.crc32:
            what = "has other bytes than were written"
        else:
            return data
        msg = f"{file.name} in the checkpoint folder {self.url!r} {what}; {_RESTORE_ANOTHER}"
        raise DamagedCheckpointError(msg)

    # --- manifests --------------------------------------------------------------------------------

    def write_manifest(self, manifest: Manifest) -> str:
        """Write a manifest, and return its name once it is durable: then the epoch counts.

        All chunk files that it lists must have been written, and the claim taken.

        Raises:
            ClaimLostError: another job has taken the folder over.
            OutputError: it cannot be written, or it is unknown whether it was; it may turn up.
            InputError: the folder cannot be read.
            ValueError, TypeError: see `encode_manifest`.
        """
        claim = self._claimed()
        name = ManifestName(claim.number, manifest.epoch, manifest.lineage.job)
        known = self._durable_names()
        if known is None:
            known = frozenset(self.manifests())
        data = encode_manifest(manifest, known)
        claim.check()
        self._files.put(str(name), data)
        self._note(NewestNote(claim.number, name))
        with self._lock:
            self._durable = (known if self._durable is None else self._durable) | {str(name)}
            self._known[str(name)] = Listed.of(manifest)
        return str(name)

    def adopt(self, point: RestorePoint) -> str:
        """Copy an epoch of another folder into this one, unless it is there; return its name here.

        So a folder has all that its checkpoints consist of. Of this folder's own nothing is copied.

        Raises:
            DamagedCheckpointError: a file of the epoch is missing, cut short or damaged.
            InputError: the other folder cannot be read.
            OutputError: this one cannot be written to.
        """
        if point.url == self.url:
            return point.manifest
        for name in self._counting(self._listed(None), self._durable_names()):
            if _is_copy(name, point):
                return str(name)
        other = CheckpointStore.at(point.url)
        manifest = other.read_manifest(point.manifest)
        for file in chunk_files(manifest).values():
            self._files.put(file.name, other.read_chunk(file))
        return self.write_manifest(replace(manifest, savepoint=False))

    def read_manifest(self, name: str) -> Manifest:
        """Return a manifest.

        Raises:
            DamagedCheckpointError: it is missing, cut short or damaged.
            InputError: it is of a newer version, or the folder cannot be read.
        """
        return self._read(name)[0]

    def manifests(self) -> list[str]:
        """Return the names of all manifests that count, the newest last; some may be damaged."""
        durable = self._durable_names()
        return list(map(str, self._counting(self._listed(durable), durable)))

    def newest(self, job: str | None = None) -> Manifest | None:
        """Return the newest manifest, None if there is none; with `job`, of those that it wrote.

        One that was never finished is passed over, and logged.

        Raises:
            DamagedCheckpointError: one that was durable is gone, cut short or damaged: to continue
                from one before it unasked would lose or repeat results.
            InputError: the newest is of a newer version, or the folder cannot be read.
        """
        found = self._newest(job)
        return None if found is None else found[1]

    def newest_name(self, job: str | None = None) -> str | None:
        """Return the name of the manifest that `newest` returns; it raises the same."""
        found = self._newest(job)
        if found is None:
            return None
        with self._lock:
            if self._durable is not None:  # whoever asks resumes from it, so it counts
                self._durable |= {str(found[0])}
        return str(found[0])

    def _newest(self, job: str | None) -> tuple[ManifestName, Manifest] | None:
        while True:
            note = read_note(self._files)
            try:
                return self._newest_behind(note, job)
            except DamagedCheckpointError:
                # The job that has the claim may have gone on meanwhile, and removed what is old.
                if read_note(self._files) == note:
                    raise

    def _newest_behind(
        self, note: NewestNote | None, job: str | None
    ) -> tuple[ManifestName, Manifest] | None:
        named = () if note is None or note.name is None else (str(note.name),)
        names = manifest_names((*self._files.names(MANIFESTS), *named))
        for name in reversed(self._counting(names, self._durable_in(note))):
            if job not in (None, name.job):
                continue
            try:
                return name, self.read_manifest(str(name))
            except DamagedCheckpointError as error:
                if note is not None and note.is_behind(name):
                    remedy = (
                        "to go on from an earlier epoch all the same, name its manifest"
                        f" ({self.url}/{MANIFESTS}/…; `whale-ray state` lists them)"
                        if any(one != name for one in names)
                        else "there is no other: bring it back, or take another folder to begin"
                        " anew"
                    )
                    known = "it was whole once, and results behind it may be out already"
                    msg = f"{error}; {known}: {remedy}"
                    raise DamagedCheckpointError(msg) from None
                _log.warning("%s: it was never finished, and is passed over", error)
        return None

    # --- what nobody needs any more ---------------------------------------------------------------

    def remove_unlisted(self, keep: int, needed: Collection[str] = ()) -> int:
        """Remove old manifests, and what nobody may need without them; return how many files.

        Args:
            keep: so many of the newest manifests stay, at least 1; savepoints stay beside them.
            needed: further manifests that stay: what a job was restored from, as long as it has
                none of its own.

        Raises:
            ClaimLostError: another job has taken the folder over; nothing is removed.
            DamagedCheckpointError: a manifest that stays is damaged. Nothing is removed then, since
                nobody knows what it lists.
            InputError: the folder cannot be read, or a manifest is of a newer version; the same.
            OutputError: something cannot be removed.
        """
        assert keep >= 1
        claim = self._claimed()
        # First what is there, then what is listed: what is written meanwhile is not looked at.
        newest = max(manifest_names(self._durable_names() or ()), default=None)
        folders = self._walks.folders(claim.job, newest)
        chunks = [name for one in folders for name in self._files.names(one)]
        chunks += [name for one in folders for name in self._files.unfinished(one)]
        durable = self._durable_names()
        if durable is None:
            self._newest(None)  # tells if it is damaged
            return 0
        names = self._listed(durable)
        manifests = self._readable(self._counting(names, durable), durable)
        if not manifests:
            return 0
        stay = kept_manifests(manifests, durable, keep, needed)
        kept = {name: one for name, one in manifests.items() if name in stay}
        last = max(manifest_names(durable), default=ManifestName(0, 0, ""))
        old = [str(name) for name in names if name < last and str(name) not in kept]
        their_chunks = [file for name in old if name in manifests for file in manifests[name].files]
        # Manifests go first: a crash in between leaves files that nothing lists, not the reverse.
        gone = [*old, *removable_chunks({*chunks, *their_chunks}, kept, claim.job)]
        if any(one.job == claim.job for one in kept.values()):
            known = (*self._files.names(CLAIMS), *self._files.names(NEWEST))
            begun = self._files.unfinished(MANIFESTS)
            gone += removable_leftovers(known, begun, self._noted.claim)
            gone += self._former_jobs - {job_name(one.job) for one in kept.values()}
        claim.check()
        for name in gone:
            self._files.remove(name)
        self._walks.ended(claim.job, newest, chunks)
        with self._lock:
            self._durable = (durable if self._durable is None else self._durable) - set(gone)
            self._former_jobs -= set(gone)
            self._known = {name: one for name, one in manifests.items() if name not in set(gone)}
        return len(gone)

    def _readable(
        self, names: Iterable[ManifestName], durable: Collection[str]
    ) -> dict[str, Listed]:
        """Return what the manifests list that are there, but those that were never finished.

        Each is read once: what has been kept by a job is not read again at each of its epochs.
        """
        with self._lock:
            known = dict(self._known)
        found = {}
        for name in map(str, names):
            listed = known.get(name) or self._read_if_finished(name, durable)
            if listed is not None:
                found[name] = listed
        return found

    def _read_if_finished(self, name: str, durable: Collection[str]) -> Listed | None:
        """Read what a manifest lists; None if it is gone, as the listing is old, or unfinished."""
        data = self._files.get(name)
        if data is None:
            return None
        try:
            return Listed.of(decode_manifest(data, self._where(name))[0])
        except DamagedCheckpointError as error:
            if name not in durable:
                return None
            msg = f"{error}; nothing is removed from that folder until it is gone"
            raise DamagedCheckpointError(msg) from None

    # --- what there is ----------------------------------------------------------------------------

    def _durable_names(self) -> frozenset[str] | None:
        """Return the names of all manifests that are durable, some may be gone; None: unknown."""
        with self._lock:
            known = self._durable
        if known is not None:
            return known
        return self._durable_in(read_note(self._files))

    def _durable_in(self, note: NewestNote | None) -> frozenset[str] | None:
        """Return the names of all manifests that are durable by a note; None: unknown."""
        if note is None or note.name is None:
            return None if note is None else frozenset()
        try:
            return self._read(str(note.name))[1] | {str(note.name)}
        except DamagedCheckpointError:
            return None

    def _listed(self, durable: frozenset[str] | None) -> list[ManifestName]:
        """Return the names of all manifests, the newest last, also if they do not count."""
        listed = set(self._files.names(MANIFESTS))
        unseen = (name for name in (durable or set()) - listed if self._files.get(name))
        return manifest_names((*listed, *unseen))

    def _counting(
        self, names: Iterable[ManifestName], durable: frozenset[str] | None
    ) -> list[ManifestName]:
        """Return those manifests that count: durable ones, and what may be durable after them."""
        note = read_note(self._files)
        if note is None:
            return list(names)
        return [
            name
            for name in names
            if note.lets_count(name)
            and (durable is None or str(name) in durable or not note.is_behind(name))
        ]

    def _read(self, name: str) -> tuple[Manifest, frozenset[str]]:
        data = self._files.get(name)
        if data is None:
            msg = f"the checkpoint folder {self.url!r} lacks {name}"
            raise DamagedCheckpointError(msg)
        return decode_manifest(data, self._where(name))

    def _where(self, name: str) -> str:
        return f"{name} in the checkpoint folder {self.url!r}"

    def _note(self, note: NewestNote) -> None:
        if note != self._noted:  # else the newest is written again, as at the end of its job
            write_note(self._files, note)
            self._noted = note

    def _claimed(self) -> Claim:
        if self.claim is None:
            msg = "a store is written to without a claim: call take_claim first"
            raise ValueError(msg)
        return self.claim


def _is_copy(name: ManifestName, point: RestorePoint) -> bool:
    """Return whether a manifest is of the same epoch of the same job."""
    of = ManifestName.of(point.manifest)
    return of is not None and (name.epoch, name.job) == (of.epoch, of.job)
