"""How an assignment is sent to members: pickled, with what is needed to unpickle it.

Functions of the user's script or notebook are pickled by value (cloudpickle), those of the user's
own modules by name. So the driver's module path must be set before the assignment is unpickled.
"""

from __future__ import annotations

import importlib.metadata
import os
import pickle
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache

import cloudpickle

from ..configs.errors import JobError, UsageError, WhaleError
from ..plan.assignment import Assignment, RelayAssignment
from ..plan.physical import watermark_slots
from ..tasks.capture import log_levels

_COMPARED = ("whale-ray", "numpy", "numba", "pyarrow", "cloudpickle")


@dataclass(frozen=True)
class Envelope:
    """A pickled assignment, as it is sent to members.

    Attributes:
        versions: of the driver's packages, by name; a member refuses to run others.
        working_directory: the driver's, for relative paths of the user.
        module_path: the driver's `sys.path`.
        inside: the pickled assignment, for workers and the controller, without the secret.
        workers: how many of the members are workers; the others are relays.
        for_relays: the pickled assignment for relays, without objects of the user.
        kill_grace_ms: how long a member may take to end after its driver has.
        output_lines_per_s: how many printed lines of a worker the driver prints; 0: none.
        log_levels: of the driver's loggers, by name.
    """

    versions: Mapping[str, str]
    working_directory: str
    module_path: tuple[str, ...]
    inside: bytes = field(repr=False)
    workers: int
    for_relays: bytes = field(repr=False)
    kill_grace_ms: int
    output_lines_per_s: int = 0
    log_levels: Mapping[str, int] = field(default_factory=dict)

    def for_member(self, index: int) -> Envelope:
        """Return a copy without what that worker or relay does not need."""
        if index < self.workers:
            return replace(self, for_relays=b"")
        return replace(self, inside=b"")


@cache
def installed_versions() -> Mapping[str, str]:
    """Return the versions that driver and workers must share, Python's first.

    Parsing what is noted of five packages takes as long as all else that a forked worker does to
    start: so it inherits this from the process that it is forked from.
    """
    versions = {"python": ".".join(map(str, sys.version_info[:2]))}
    for name in _COMPARED:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "not installed as a package"
    return versions


def seal(assignment: Assignment, *, forward_output: bool = True) -> Envelope:
    """Pickle an assignment; raises UsageError for a function or object that cannot be pickled.

    Likewise if the working directory was removed. `forward_output`: whether the driver prints what
    workers print.
    """
    try:
        inside = cloudpickle.dumps(replace(assignment, secret=b""))
    except Exception as error:
        culprit = _culprit(assignment)
        remedy = (
            ""  # it has one of its own
            if isinstance(error, WhaleError)
            else "; create files, locks and connections on the worker, in open() of a class "
            "(whale.Process, or a source or sink), rather than beforehand"
        )
        msg = f"{culprit} cannot be sent to a worker: {error}{remedy}"
        raise UsageError(msg) from error
    working_directory = _working_directory()
    module_path = tuple(os.path.abspath(entry) for entry in sys.path)
    runtime = assignment.settings.runtime
    return Envelope(
        versions=installed_versions(),
        working_directory=working_directory,
        module_path=module_path,
        inside=inside,
        workers=assignment.plan.workers,
        for_relays=pickle.dumps(relay_assignment(assignment)),
        kill_grace_ms=runtime.kill_grace_ms,
        output_lines_per_s=runtime.output_lines_per_s if forward_output else 0,
        log_levels=log_levels(),
    )


def relay_assignment(assignment: Assignment) -> RelayAssignment:
    """Return the part of an assignment that relays need."""
    plan = assignment.plan
    placed = [
        plan.stage_of(operator).instance_worker[instance]
        for operator, instance in watermark_slots(plan)
    ]
    return RelayAssignment(
        assignment.job_id,
        plan.streams,
        tuple(plan.hosts.of_worker[worker] for worker in placed),
        assignment.settings,
        assignment.secret,
    )


def unseal(envelope: Envelope) -> Assignment:
    """Unpickle an assignment on a worker, after taking over the driver's directory and module path.

    Raises JobError if versions differ, a module is missing, or an object cannot be unpickled.
    """
    _compare_versions(envelope)
    if os.path.isdir(envelope.working_directory):
        os.chdir(envelope.working_directory)
    sys.path.extend(path for path in envelope.module_path if path not in sys.path)
    try:
        assignment = pickle.loads(envelope.inside)  # noqa: S301  # from our own driver
    except ImportError as error:
        msg = f"a worker cannot import what the topology uses: {error}; install it on every host"
        raise JobError(msg) from error
    except BaseException as error:  # of the user's objects
        kind = type(error).__name__
        msg = (
            f"a worker cannot unpack the topology: {kind}: {error}; what it uses has to be found "
            "and unpickled on every host as on the driver's"
        )
        raise JobError(msg) from error
    assert isinstance(assignment, Assignment)
    return assignment


def unseal_for_relay(envelope: Envelope) -> RelayAssignment:
    """Unpickle a relay's assignment, without code of the user. JobError if versions differ."""
    _compare_versions(envelope)
    assignment = pickle.loads(envelope.for_relays)  # noqa: S301  # from our own driver
    assert isinstance(assignment, RelayAssignment)
    return assignment


def _compare_versions(envelope: Envelope) -> None:
    mine = installed_versions()
    for name, version in envelope.versions.items():
        if mine.get(name) != version:
            msg = (
                f"a worker runs {name} {mine.get(name)}, the driver {version}; "
                "install the same version on every host"
            )
            raise JobError(msg)


def _working_directory() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        msg = "the working directory was removed, and workers run in it: change to another one"
        raise UsageError(msg) from None


def _culprit(assignment: Assignment) -> str:
    """Return the name of the operator or transport that cannot be pickled."""
    for node in assignment.plan.logical.nodes:
        try:
            cloudpickle.dumps(node.payload)
        except Exception:  # noqa: BLE001  # whatever a user's object raises when pickled
            return f"operator {node.id!r} ({node.location})"
    for edge in assignment.plan.edges:
        try:
            cloudpickle.dumps(edge.transport)
        except Exception:  # noqa: BLE001  # as above
            assert edge.transport is not None
            return f"transport {edge.transport.name!r}"
    return "the topology"
