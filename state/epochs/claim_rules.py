"""Who may write into a folder of checkpoints: one job at a time. Pure.

Each job that begins to use a folder takes a claim, whose number is one higher than the last: the
highest one holds, whatever the others believe (a fencing token). A job whose claim no longer holds
may write no manifest, and commit nothing. A further attempt of a job at a URL advances its
claim, so that what comes late of the one before can be told apart.

A claim is taken over from a job that is dead. On the host of a local directory a lock says so at
once, since the kernel releases it when its process dies; elsewhere its heartbeat does, once it has
not been heard for long enough. The clocks of hosts must agree to a few seconds for that. A user
who knows better can order it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from .manifest import Manifest
from .sealed_json import seal, unseal

__all__ = ["ClaimRecord", "LockState", "refusal_of_claim", "refusal_of_folder"]

EXPIRY_MS = 30_000
"""A job that was not heard for so long is taken for dead."""
BEAT_MS = 8_000
"""How often a job renews its claim: thrice and more before it expires."""

_TAKE_OVER = "checkpoints.take_over=true, or resume with --take-over"
_KIND = "claim"
_VERSION = 1


class LockState:
    """What the lock of a folder says: it has none, another process has it, or this one has."""

    NONE = "none"
    OTHERS = "others"
    OURS = "ours"


@dataclass(frozen=True)
class ClaimRecord:
    """What the file of a claim says.

    Attributes:
        number: the claim's.
        job: the id of the job.
        topology: its name.
        host: where its controller runs.
        pid: of that process.
        since_ms: when the claim was taken; wall clock, ms since 1970.
        beat_ms: when it was renewed.
        locks: whether its process has locked the folder.
        over: whether it was given back.
    """

    number: int
    job: str
    topology: str
    host: str
    pid: int
    since_ms: int
    beat_ms: int
    locks: bool = False
    over: bool = False

    def encode(self) -> bytes:
        """Return the claim's file."""
        return seal(_KIND, _VERSION, self)

    @classmethod
    def decode(cls, data: bytes, name: str) -> ClaimRecord:
        """Return what a claim's file says; see `unseal` for what it raises."""
        return cls(**unseal(_KIND, _VERSION, data, name))

    def is_of(self, other: ClaimRecord) -> bool:
        """Return whether both are of the same claim, heartbeats apart."""
        mine = (self.number, self.job, self.host, self.pid, self.since_ms)
        return mine == (other.number, other.job, other.host, other.pid, other.since_ms)

    def __str__(self) -> str:
        since = datetime.fromtimestamp(self.since_ms / 1_000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        return (
            f"job {self.job} (topology {self.topology!r}, process {self.pid} on host {self.host})"
            f" since {since}"
        )


def refusal_of_claim(
    held: ClaimRecord, *, job: str, lock: str, host: str, now_ms: int, url: str
) -> str:
    """Return why the last claim of a folder must not be taken over; "" if it may.

    Args:
        held: the claim.
        job: the id of the job that wants it; the successor of a controller that failed may have it.
        lock: of `LockState`.
        host: this one.
        now_ms: wall clock.
        url: the folder.
    """
    if held.over or held.job == job:
        return ""
    left_ms = max(0, held.beat_ms + EXPIRY_MS - now_ms)
    in_use = (
        f"the checkpoint folder {url!r} is in use by {held}; stop that job, name another folder"
    )
    if lock == LockState.OTHERS:
        return f"{in_use}, or take it over ({_TAKE_OVER})"
    if (lock == LockState.OURS and held.locks and held.host == host) or not left_ms:
        return ""
    seconds = -(-left_ms // 1_000)
    return f"{in_use}, or, if it is dead, try again in {seconds} s (at once with {_TAKE_OVER})"


def refusal_of_folder(
    newest: Manifest | None, *, job: str, topology: str, is_restored: bool, url: str
) -> str:
    """Return why a job must not write into a folder, whose newest manifest is given; "" if it may.

    Args:
        newest: None if there is none.
        job: the id of the job.
        topology: its name.
        is_restored: whether it resumes from a manifest of this folder, which the user named.
        url: the folder.
    """
    if newest is None or is_restored or newest.lineage.job == job:
        return ""
    holds = (
        f"the checkpoint folder {url!r} holds epoch {newest.epoch} of job {newest.lineage.job},"
        f" topology {newest.topology!r}"
    )
    if newest.topology != topology:
        return f"{holds}, not of topology {topology!r}; name another folder"
    if newest.finished:
        return ""
    return f"{holds}; go on from it (restore='latest'), or name another folder to begin anew"
