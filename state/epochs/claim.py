"""The claim of a job on its folder of checkpoints, with its heartbeat; see `claim_rules`."""

from __future__ import annotations

import fcntl
import logging
import os
import socket
import threading
from contextlib import suppress
from dataclasses import replace

from ...configs.errors import (
    ClaimLostError,
    DamagedCheckpointError,
    FolderInUseError,
    OutputError,
    WhaleError,
)
from ...configs.units import NS_PER_MS
from ...transport.clock import Clock
from .claim_rules import BEAT_MS, ClaimRecord, LockState, refusal_of_claim
from .local_files import LocalFiles
from .store_files import StoreFiles
from .store_names import CLAIMS, LOCK, NEWEST, claim_name, claim_number

__all__ = ["Claim", "check_not_in_use", "claim_numbers"]

_log = logging.getLogger(__name__)

_TRIES_MAX = 100


class Claim:
    """A claim that this process has taken; `close` gives it back.

    Attributes:
        number: higher than those of all claims before.
        job: the id of the job.
    """

    def __init__(self, files: StoreFiles, record: ClaimRecord, clock: Clock, lock: int) -> None:
        """Take over the descriptor of the folder's lock, -1 if there is none; see `take`."""
        self.number = record.number
        self.job = record.job
        self._files = files
        self._record = record
        self._clock = clock
        self._lock = lock
        self._end = threading.Event()
        self._beats: threading.Thread | None = None
        self._putting = threading.Lock()

    @classmethod
    def take(
        cls, files: StoreFiles, job: str, topology: str, *, clock: Clock, take_over: bool = False
    ) -> Claim:
        """Take the claim of a folder.

        Args:
            files: the folder.
            job: the id of the job.
            topology: its name.
            clock: whose wall time is that of the heartbeats.
            take_over: also from a job that is alive.

        Raises:
            FolderInUseError: another job uses the folder.
            OutputError: it cannot be written to.
            InputError: it cannot be read.
        """
        state, lock = _lock(files)
        record = ClaimRecord(
            number=0,
            job=job,
            topology=topology,
            host=socket.gethostname(),
            pid=os.getpid(),
            since_ms=clock.wall_ns() // NS_PER_MS,
            beat_ms=clock.wall_ns() // NS_PER_MS,
            locks=state == LockState.OURS,
        )
        try:
            for _ in range(_TRIES_MAX):
                last = max(claim_numbers(files))
                if not take_over:
                    _check_free(files, last, state, record)
                record = replace(record, number=last + 1)
                is_ours = files.create(claim_name(last + 1), record.encode())
                # A store without exclusive puts lets two succeed; then the last one has it.
                if is_ours and _is_of(files, record):
                    return cls(files, record, clock, lock)
            msg = f"the checkpoint folder {files.url!r} is claimed by many jobs at once; try again"
            raise OutputError(msg)
        except BaseException:
            _unlock(lock)
            raise

    def holds(self) -> bool:
        """Return whether no other job has taken the folder over, and it is still there.

        Raises:
            InputError: the folder cannot be read, so nobody knows.
        """
        if self._end.is_set():
            return False
        return max(claim_numbers(self._files)) == self.number and _is_of(self._files, self._record)

    def check(self) -> None:
        """Do nothing if the claim holds.

        Raises:
            ClaimLostError: it does not.
            OutputError: there is no claim at all: the folder is gone, and may come back.
            InputError: the folder cannot be read, so nobody knows.
        """
        if self.holds():
            return
        where = f"job {self._record.job} no longer has the checkpoint folder {self._files.url!r}"
        last = max(claim_numbers(self._files))
        if not last and not self._end.is_set():
            raise OutputError(vanished(self._files.url))
        try:
            data = self._files.get(claim_name(last)) if last > self.number else None
            by = "" if data is None else f", which was taken over by {ClaimRecord.decode(data, '')}"
        except DamagedCheckpointError:
            by = ", which another job has taken over"
        msg = f"{where}{by or ', whose claim is gone'}: it writes and commits nothing any more"
        if not by:
            msg += (
                "; see what is left there (`whale-ray state PATH`) and resume the job, or submit it"
                " with another folder"
            )
        raise ClaimLostError(msg)

    def beat(self) -> None:
        """Renew the claim, unless it no longer holds."""
        with self._putting:
            if self.holds():
                now_ms = self._clock.wall_ns() // NS_PER_MS
                record = replace(self._record, beat_ms=now_ms)
                self._files.put(claim_name(self.number), record.encode())

    def advance(self) -> None:
        """Take the next number, which tells what is written from now on from what was before.

        Raises:
            ClaimLostError: the claim does not hold.
            OutputError, InputError: see `check`; or the folder cannot be written to.
        """
        with self._putting:
            self.check()
            now_ms = self._clock.wall_ns() // NS_PER_MS
            record = replace(self._record, number=self.number + 1, beat_ms=now_ms)
            self._files.create(claim_name(record.number), record.encode())
            if not _is_of(self._files, record):
                self.check()  # another job has that number
            self.number, self._record = record.number, record

    def start_beating(self) -> None:
        """Renew the claim again and again, in a thread of its own, until `close`."""
        self._beats = threading.Thread(target=self._beat_on, name="claim", daemon=True)
        self._beats.start()

    def close(self) -> None:
        """Give the claim back, so that another job can take it at once; may be called twice."""
        if self._end.is_set():
            return
        with self._putting:
            # What cannot be read or written now ends with the heartbeat.
            with suppress(WhaleError):
                if self.holds():
                    over = replace(self._record, over=True)
                    self._files.put(claim_name(self.number), over.encode())
            self._end.set()
        if self._beats is not None:
            self._beats.join()
        _unlock(self._lock)
        self._lock = -1

    def _beat_on(self) -> None:
        was_told = False
        while not self._end.wait(BEAT_MS / 1_000):
            try:
                self.beat()
                was_told = False
            except WhaleError as error:
                if not was_told:
                    _log.warning("the claim on the checkpoints is not renewed for now: %s", error)
                was_told = True


def vanished(url: str) -> str:
    """Return what is said of a folder in which nothing is left of what was there."""
    return (
        f"the checkpoint folder {url!r} has vanished: nothing is left of what was in it; bring it"
        " back (is a disk no longer mounted?), or submit the job with another folder"
    )


def claim_numbers(files: StoreFiles) -> list[int]:
    """Return the numbers of all claims, 0 among them, also of those that a listing lacks yet."""
    names = (*files.names(CLAIMS), *files.names(NEWEST))
    numbers = {0, *map(claim_number, names)}
    while files.get(claim_name(max(numbers) + 1)) is not None:
        numbers.add(max(numbers) + 1)
    return sorted(numbers)


def check_not_in_use(files: StoreFiles, job: str, clock: Clock) -> None:
    """Raise FolderInUseError if another job surely uses a folder; it reads only, `take` decides.

    To try the folder's lock would refuse it to a job that takes it in that moment. So a claim with
    a lock, on this host, counts if its process is seen to have the lock's file open.
    """
    held = _held(files, max(claim_numbers(files)))
    if held is None:
        return
    lock, host = LockState.NONE, socket.gethostname()
    if held.locks and held.host == host:
        if not (isinstance(files, LocalFiles) and files.is_open_in(LOCK, held.pid)):
            return  # it is dead, or this process may not see it
        lock = LockState.OTHERS
    now_ms = clock.wall_ns() // NS_PER_MS
    reason = refusal_of_claim(held, job=job, lock=lock, host=host, now_ms=now_ms, url=files.url)
    if reason:
        raise FolderInUseError(reason, held.job, is_locked=lock == LockState.OTHERS)


def _check_free(files: StoreFiles, number: int, lock: str, ours: ClaimRecord) -> None:
    held = _held(files, number)
    if held is None:
        return
    reason = refusal_of_claim(
        held, job=ours.job, lock=lock, host=ours.host, now_ms=ours.beat_ms, url=files.url
    )
    if reason:
        raise FolderInUseError(reason, held.job, is_locked=lock == LockState.OTHERS)


def _held(files: StoreFiles, number: int) -> ClaimRecord | None:
    """Return the claim of a number, None if there is none; raises OutputError if it is damaged."""
    data = files.get(claim_name(number))
    try:
        where = f"{claim_name(number)} in the checkpoint folder {files.url!r}"
        return None if data is None else ClaimRecord.decode(data, where)
    except DamagedCheckpointError as error:
        msg = f"{error}; once no job uses that folder, set checkpoints.take_over=true"
        raise OutputError(msg) from None


def _is_of(files: StoreFiles, record: ClaimRecord) -> bool:
    """Return whether the file of a claim is of it, and not of another job's."""
    data = files.get(claim_name(record.number))
    try:
        return data is not None and ClaimRecord.decode(data, "").is_of(record)
    except DamagedCheckpointError:  # it was cut short while it was renewed
        return True


def _lock(files: StoreFiles) -> tuple[str, int]:
    """Lock a local folder until this process dies; return what came of it, and the descriptor."""
    if not isinstance(files, LocalFiles):
        return LockState.NONE, -1
    descriptor = files.lock_file(LOCK)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return LockState.OTHERS, -1
    except OSError:  # the file system has no locks
        os.close(descriptor)
        return LockState.NONE, -1
    return LockState.OURS, descriptor


def _unlock(descriptor: int) -> None:
    if descriptor >= 0:
        os.close(descriptor)
