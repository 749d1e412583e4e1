"""What is to be run: a topology, or a job that goes on; each plans itself for the place it gets."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, TypeAlias, cast

from ..configs.settings import Settings
from ..operators.sinks.base import Sink
from ..operators.sources.base import Source
from ..plan.assignment import Assignment, resumed_assignment
from ..plan.column_pruning import prune_columns
from ..plan.logical import LogicalPlan, OperatorKind
from ..plan.physical import PhysicalPlan
from ..plan.planner import plan
from ..plan.preflight import unbounded_sources
from ..plan.rescaling import rescale_decisions
from .checkpoints import CheckpointOptions, warn_without_checkpoints
from .new_jobs import checked_job_id, new_job_id

if TYPE_CHECKING:
    from ..optimizer.decisions import OptimizerDecision
    from ..plan.requests import ClusterNode
    from ..state.epochs.epoch_commands import RestorePoint
    from ..state.epochs.manifest import Lineage

__all__ = ["Decisions", "JobRequest", "NewJob", "ResumedJob", "prepare_operators"]

Decisions: TypeAlias = "tuple[OptimizerDecision, ...]"
"""What the optimizer decided on a topology, in order."""

_log = logging.getLogger(__name__)


class JobRequest(Protocol):
    """A job that is asked for."""

    @property
    def logical(self) -> LogicalPlan:
        """The topology."""

    @property
    def settings(self) -> Settings:
        """As the user has them; the place where the job runs may add some."""

    @property
    def workers(self) -> int | None:
        """How many worker processes; None: as in the settings."""

    def assignment(self, settings: Settings, nodes: Sequence[ClusterNode] = ()) -> Assignment:
        """Plan the job.

        Args:
            settings: of the job, where it runs.
            nodes: the cluster's node of each host; none: it runs on this machine, without Ray.

        Raises:
            WhaleError: it cannot be planned, or cannot resume from there.
        """


@dataclass(frozen=True)
class NewJob:
    """A topology that becomes a job; it may begin with another job's checkpoint.

    Attributes:
        logical, settings, workers: as of every request.
        checkpointing: whether it takes checkpoints, and where it begins.
        decisions: the optimizer's on the topology.
        job_id: the job's.
    """

    logical: LogicalPlan
    settings: Settings
    workers: int | None
    checkpointing: CheckpointOptions
    decisions: Decisions
    job_id: str

    @classmethod
    def checked(
        cls,
        logical: LogicalPlan,
        settings: Settings,
        workers: int | None,
        checkpointing: CheckpointOptions | None = None,
        decisions: Decisions = (),
    ) -> NewJob:
        """Check a topology before anything is started for it; raises as `checked_job_id`."""
        checkpointing = checkpointing or CheckpointOptions()
        job_id = checked_job_id(logical, settings, checkpointing)
        return cls(logical, settings, workers, checkpointing, decisions, job_id)

    def assignment(self, settings: Settings, nodes: Sequence[ClusterNode] = ()) -> Assignment:
        """See `JobRequest.assignment`."""
        if not nodes:
            _warn_of_requests(self.logical)
        logical = prepare_operators(prune_columns(self.logical), settings, cluster=bool(nodes))
        physical: PhysicalPlan = plan(logical, settings, self.workers, nodes=nodes)
        begun = Assignment(self.job_id, physical, settings, decisions=self.decisions)
        warn_without_checkpoints(begun, unbounded_sources(logical))
        return self.checkpointing.restored(begun)


@dataclass(frozen=True)
class ResumedJob:
    """A job that was kept beside its checkpoints, and goes on.

    Attributes:
        logical, settings, workers: as of every request.
        before: the job.
        point: its checkpoint.
        lineage: of that.
    """

    logical: LogicalPlan
    settings: Settings
    workers: int | None
    before: Assignment
    point: RestorePoint
    lineage: Lineage

    def assignment(self, settings: Settings, nodes: Sequence[ClusterNode] = ()) -> Assignment:
        """See `JobRequest.assignment`."""
        planned: PhysicalPlan = plan(self.logical, settings, self.workers, nodes=nodes)
        before = self.before
        changes = rescale_decisions(before.plan, planned, before.job_id, self.point.epoch)
        decided = (*before.decisions, *changes)
        begun = Assignment(new_job_id(self.logical.name), planned, settings, decisions=decided)
        return resumed_assignment(begun, self.point, self.lineage)


def prepare_operators(logical: LogicalPlan, settings: Settings, *, cluster: bool) -> LogicalPlan:
    """Make sources serializable (they may refer to objects of the driver), and configure sinks."""
    nodes = []
    for node in logical.nodes:
        payload = node.payload
        if node.kind is OperatorKind.SOURCE:
            payload = cast(Source, payload).materialize(cluster=cluster)
        elif node.kind is OperatorKind.SINK:
            payload = cast(Sink, payload).configured(settings).for_operator(node.id)
        nodes.append(replace(node, payload=payload))
    return replace(logical, nodes=tuple(nodes))


def _warn_of_requests(logical: LogicalPlan) -> None:
    """Log a warning if operators request Ray resources, which have no effect without Ray."""
    named = [f"{node.id!r} ({node.request.describe()})" for node in logical.nodes if node.request]
    if named:
        _log.warning(
            "topology %r: what %s asks Ray for has no effect without Ray",
            logical.name,
            ", ".join(named),
        )
