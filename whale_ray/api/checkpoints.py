"""The options of `run` and `submit` about checkpoints, and the restore point of a job."""

from __future__ import annotations

import logging
import os
import pickle
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias, cast

from ..configs.errors import DamagedCheckpointError, InputError, UsageError, WhaleError
from ..configs.settings import Settings
from ..control.operator_records import check_restorable
from ..deployment.envelope import Envelope, installed_versions, seal, unseal
from ..operators.arguments import check_type, names
from ..operators.sources.base import Source
from ..operators.windows.durations import Duration, duration_ns
from ..plan.assignment import Assignment, has_checkpoints, resumed_assignment
from ..plan.logical import LogicalPlan, OperatorKind
from ..state.epochs.checkpoint_store import CheckpointStore
from ..state.epochs.epoch_commands import RestorePoint
from ..state.epochs.manifest import Manifest, how_it_ended
from ..state.epochs.store_names import job_name
from .state_reading import open_store
from .unmounted_disks import unmounted_disk

LATEST = "latest"
Where: TypeAlias = Literal["ray", "processes"]
"""Where a job runs, other than in the calling process."""

_DISCARDED = "the ids of the operators whose state is to be discarded"
_OF_ONE_PROCESS = "memory://"

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CheckpointOptions:
    """The arguments of `submit` or `run` about checkpoints; see there."""

    checkpoints: str | Path | None = None
    interval: Duration | None = None
    timeout: Duration | None = None
    restore: str | Path | None = None
    restore_without: Collection[str] = ()
    call: Literal["submit", "run"] = "submit"
    """Of what they are arguments, for messages."""

    def configured(self, settings: Settings) -> Settings:
        """Return settings with these options in them.

        Raises:
            UsageError: an option has no effect without checkpoints, or another type.
            InputError: a duration is none.
            SettingsError: a duration is out of range.
        """
        for name, where in (("checkpoints", self.checkpoints), ("restore", self.restore)):
            wanted = "a folder, or a URL such as 's3://bucket/trips'"
            check_type(self.call, name, where, (str, os.PathLike, type(None)), wanted)
        given: dict[str, object] = {}
        if self.checkpoints is not None:
            given["checkpoints.url"] = str(self.checkpoints)
        if self.interval is not None:
            given["checkpoints.interval_ms"] = _milliseconds(self.interval, "checkpoint_interval")
        if self.timeout is not None:
            given["checkpoints.timeout_ms"] = _milliseconds(self.timeout, "checkpoint_timeout")
        settings = settings.with_overrides(given)
        url = settings.checkpoints.url
        if url or self.checkpoints is not None:
            return settings.with_overrides({"checkpoints.url": CheckpointStore.at(url).url})
        needing = {
            "checkpoint_interval": self.interval is not None,
            "checkpoint_timeout": self.timeout is not None,
            "restore": self.restore is not None,
            "restore_without": bool(self.restore_without),
        }
        for name, is_given in needing.items():
            if is_given:
                msg = f"{name}= has no effect without checkpoints=: name the folder to keep them in"
                raise UsageError(msg)
        return settings

    def check_folder(self, job_id: str, topology: str, settings: Settings) -> None:
        """Refuse a job that begins anew where another one has left checkpoints, or still runs.

        Raises:
            OutputError: another job uses the folder.
            InputError: it holds checkpoints from which the job could go on, or cannot be read.
        """
        url = settings.checkpoints.url
        if url and self.restore is None:
            take_over = settings.checkpoints.take_over
            CheckpointStore.at(url).check_new(job_id, topology, take_over=take_over)

    def restored(self, assignment: Assignment) -> Assignment:
        """Return a job that continues where `restore` says; raises what `find_manifest` does."""
        without = names(self.call, "restore_without", self.restore_without, _DISCARDED, or_one=True)
        if self.restore is None:
            if without:
                msg = "restore_without= has no effect without restore=; leave it out"
                raise UsageError(msg)
            return assignment
        found = find_manifest(str(self.restore), assignment.settings.checkpoints.url)
        if found is None:
            _check_mounted(assignment.settings.checkpoints.url)
            _log.warning(
                "restore=%r: there is no checkpoint in %s, so the job begins at the start; if there"
                " should be one, stop it, and see whether that disk is mounted",
                LATEST,
                assignment.settings.checkpoints.url,
            )
            return assignment
        point, manifest = found
        if self.restore == LATEST:
            _check_same_topology(assignment.plan.name, point, manifest)
        check_restorable(assignment.plan.logical, manifest, without)
        return resumed_assignment(assignment, point, manifest.lineage)


def _check_mounted(url: str) -> None:
    """Raise InputError if a folder without checkpoints is on a disk that is not there now."""
    disk = "" if "://" in url else unmounted_disk(url)
    if disk:
        msg = (
            f"restore={LATEST!r}: there is no checkpoint in {url!r}, and no disk is mounted at"
            f" {disk!r}, as /etc/fstab says: mount it, or name another folder"
        )
        raise InputError(msg)


def _check_same_topology(name: str, point: RestorePoint, manifest: Manifest) -> None:
    """Raise InputError if the newest checkpoint is of another topology.

    Its operators may have the same ids: the job would go on from positions that are not its own.
    """
    if manifest.topology != name:
        msg = (
            f"the checkpoint folder {point.url!r} holds epoch {manifest.epoch} of job"
            f" {manifest.lineage.job}, topology {manifest.topology!r}, not of topology {name!r}:"
            " name another folder; or, if it was renamed, name the checkpoint,"
            f" restore='{point.url}/{point.manifest}'"
        )
        raise InputError(msg)


def find_manifest(restore: str, url: str) -> tuple[RestorePoint, Manifest] | None:
    """Return the checkpoint that `restore` names, and what it says.

    Args:
        restore: "latest", a folder of checkpoints, or the path of a manifest in one.
        url: the job's own folder of checkpoints, for "latest".

    Returns:
        None if it is "latest", and there is none yet.

    Raises:
        UsageError: there is no checkpoint at the path, or the job has finished after it.
        InputError: the folder cannot be read, or the manifest is damaged or of a newer version.
    """
    store, named = (CheckpointStore.at(url), None) if restore == LATEST else open_store(restore)
    found = named or store.newest_name()
    if found is None:
        if restore == LATEST:
            return None
        msg = (
            f"there is no checkpoint in {store.url}: name the folder that the job was given as"
            " checkpoints=; a job that died before its first checkpoint is submitted again"
        )
        raise UsageError(msg)
    try:
        manifest = store.read_manifest(found)
    except DamagedCheckpointError as error:
        msg = f"{error}; name another checkpoint (`whale-ray state` lists them)"
        raise DamagedCheckpointError(msg) from None
    if manifest.finished:
        msg = (
            f"job {manifest.lineage.job!r} has ended behind its checkpoint {manifest.epoch}, and"
            f" {how_it_ended(manifest)}: there is nothing to go on with. Leave restore= out and"
            " take another folder of checkpoints to run it again, or name an earlier checkpoint"
        )
        raise UsageError(msg)
    return RestorePoint(store.url, found, manifest.epoch, is_newest=named is None), manifest


@dataclass(frozen=True)
class SavedJob:
    """What is kept beside checkpoints: the job as it was submitted, and where it ran."""

    on: Where
    envelope: Envelope


def check_claimable(assignment: Assignment) -> None:
    """Refuse a job whose controller would not get the folder of its checkpoints; takes nothing.

    Raises:
        FolderInUseError: another job uses the folder.
        InputError: it holds checkpoints from which the job does not go on, or cannot be read.
    """
    if has_checkpoints(assignment):
        checkpoints = assignment.settings.checkpoints
        CheckpointStore.at(checkpoints.url).check_claimable(
            assignment.job_id,
            assignment.plan.name,
            assignment.restore,
            take_over=checkpoints.take_over,
        )


def save_for_resume(assignment: Assignment, on: Where) -> None:
    """Keep a job that takes checkpoints beside them, for `resume`.

    Raises:
        UsageError: something of the topology cannot be pickled, or no other process can see the
            folder.
        OutputError: the folder cannot be written to.
    """
    if has_checkpoints(assignment):
        store = CheckpointStore.at(assignment.settings.checkpoints.url)
        if store.url.startswith(_OF_ONE_PROCESS):
            msg = (
                f"checkpoints in {store.url} are in the memory of one process, and the workers of a"
                " submitted job are others: name a folder or a URL that all of them reach"
            )
            raise UsageError(msg)
        store.jobs.write(assignment.job_id, pickle.dumps(SavedJob(on, seal(assignment))))


def forget_saved(assignment: Assignment) -> None:
    """Remove what `save_for_resume` has kept of a job that did not start."""
    if has_checkpoints(assignment):
        with suppress(WhaleError):
            CheckpointStore.at(assignment.settings.checkpoints.url).jobs.forget(assignment.job_id)


def load_job(where: str | Path) -> tuple[Assignment, Where, RestorePoint, Manifest]:
    """Return the job that wrote the newest checkpoint at a path, where it ran, and that checkpoint.

    Raises:
        UsageError: there is no checkpoint, the job has finished after it, or was run by another
            version of what it needs, or `where` has another type.
        InputError: the folder cannot be read, a file in it is damaged or missing.
        JobError: the topology cannot be unpickled here.
    """
    check_type("resume", "path", where, (str, os.PathLike), "the path or URL of checkpoints")
    path = str(where)
    found = find_manifest(path, path)
    if found is None:
        msg = f"there is no checkpoint in {path}; name the folder that the job was given"
        raise UsageError(msg)
    point, manifest = found
    job = manifest.lineage.job
    packed = CheckpointStore.at(point.url).jobs.read(job)
    if packed is None:
        msg = (
            f"{point.url} lacks what job {job!r} was submitted as (of a job in the calling process"
            f" it is not kept): run or submit its topology again, with restore={path!r}"
        )
        raise InputError(msg)
    kept = _saved_job(packed, job, point.url, path)
    _check_versions(kept.envelope, job, path)
    return unseal(kept.envelope), kept.on, point, manifest


def as_resumed(logical: LogicalPlan) -> LogicalPlan:
    """Let the sources of a job that was kept look at their inputs anew."""
    nodes = [
        replace(node, payload=cast(Source, node.payload).as_resumed())
        if node.kind is OperatorKind.SOURCE
        else node
        for node in logical.nodes
    ]
    return replace(logical, nodes=tuple(nodes))


def _saved_job(packed: bytes, job: str, url: str, path: str) -> SavedJob:
    try:
        kept = pickle.loads(packed)  # noqa: S301  # the user's own folder, as they name it
    except Exception as error:  # noqa: BLE001  # damaged bytes raise anything
        msg = (
            f"what job {job!r} was submitted as, {job_name(job)} in {url}, is damaged ({error}):"
            f" submit its topology again, with restore={path!r}"
        )
        raise InputError(msg) from None
    assert isinstance(kept, SavedJob)
    return kept


def _check_versions(envelope: Envelope, job: str, path: str) -> None:
    mine = installed_versions()
    for name, version in envelope.versions.items():
        if mine.get(name) != version:
            msg = (
                f"job {job!r} was submitted with {name} {version}, and here is {mine.get(name)}:"
                f" install that, or submit the topology again with restore={path!r}"
            )
            raise UsageError(msg)


def warn_without_checkpoints(assignment: Assignment, unbounded: Collection[str]) -> None:
    """Log what a failure would cost a job that never ends and takes no checkpoints."""
    if has_checkpoints(assignment) or not unbounded:
        return
    runtime = assignment.settings.runtime
    if runtime.on_loss == "fail":
        cost = (
            "if a worker dies the job fails, and what was read since its last part, up to"
            f" {runtime.commit_interval_ms:,} ms, is lost"
        )
    else:
        cost = "if a worker dies the sources are read again from their start, and rows come twice"
    _log.warning(
        "topology %r does not end (%s) and takes no checkpoints: %s. With checkpoints='folder' it"
        " goes on where it was, and each row comes once",
        assignment.plan.name,
        ", ".join(map(repr, unbounded)),
        cost,
    )


def _milliseconds(value: Duration, what: str) -> int:
    return duration_ns(value, what) // 1_000_000
