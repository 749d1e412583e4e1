"""Adapts a running job to its rate: looks at its workers, and tells them what the policies decide.

The policies are pure (`optimizer.slice_policy`, `optimizer.scaling_policy`). Limits of slices are
changed while the job runs; other degrees of parallelism are proposed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from ..metrics.counters import MemberCounters
from ..multicast.tree_state import SwitchReport
from ..operators.groupings import All, Custom, Direct, Global
from ..optimizer.decisions import Decides, OptimizerDecision
from ..optimizer.scaling_policy import DopProposal, ScalingPolicy
from ..optimizer.slice_policy import SliceBounds, SliceChange, SlicePolicy
from ..plan.assignment import Assignment
from ..plan.physical import Edge, PhysicalPlan, Stage
from ..transport.clock import Clock
from ..transport.slice_limits import SliceLimits
from ..worker.limit_slices import LimitSlices
from .job_decisions import JobDecisions
from .stage_loads import LoadsBetween

__all__ = ["Adaptation"]

TellWorkers = Callable[[LimitSlices], None]
"""Sends a message to all workers, in the attempt that runs."""

_NAMES_INSTANCES = (Direct, Custom, Global, All)
"""Groupings behind which another parallelism means other results, or does not divide the work."""


class Adaptation:
    """Looks at a job at an interval, in all its attempts.

    Args:
        assignment: of the job; `runtime.adapt` says whether anything is changed.
        tell: how workers are told.
        clock: of the controller.

    Attributes:
        decisions: all that were made on the job.
    """

    def __init__(self, assignment: Assignment, tell: TellWorkers, clock: Clock) -> None:
        settings = assignment.settings
        self._clock = clock
        self._plan: PhysicalPlan = assignment.plan
        self.decisions = JobDecisions(self._plan, assignment.decisions, clock.monotonic_ns())
        self._tell = tell
        self._interval_ns = settings.runtime.adapt_interval_ms * 1_000_000
        self._attempt = -1
        self._seen: dict[int, MemberCounters] = {}
        self._due_ns = 0
        self._slices: dict[int, SlicePolicy] = {}  # by edge
        self._scaling: dict[int, ScalingPolicy] = {}
        if not settings.runtime.adapt:
            return
        wtl_ns = int(settings.transport.wtl_ms * 1e6)
        longest_ns = max(wtl_ns, int(settings.runtime.adapt_wait_max_ms * 1e6))
        bounds = SliceBounds(settings.transport.mms_bytes, wtl_ns, longest_ns)
        self._slices = {edge.id: SlicePolicy(bounds, edge.batch_rows) for edge in self._plan.edges}
        for stage in self._plan.stages:
            if self._may_scale(stage):
                nodes = settings.runtime.virtual_nodes
                scaling = ScalingPolicy(stage.parallelism, nodes, self._plan.workers)
                self._scaling[stage.id] = scaling

    def turn(
        self,
        attempt: int,
        newest: Mapping[int, MemberCounters],
        switches: Iterable[SwitchReport] = (),
    ) -> None:
        """Look at the workers if it is time, once all have told their counters since the last.

        `switches` are those of multicast trees that are known.
        """
        now_ns = self._clock.monotonic_ns()
        self.decisions.note_switches(switches)
        if attempt != self._attempt:
            self._begin(attempt, now_ns)
        if now_ns < self._due_ns:
            return
        workers = range(self._plan.workers)
        now = {one: newest[one] for one in workers if one in newest}
        if len(now) < len(workers):
            return
        if not self._seen:
            self._seen, self._due_ns = now, now_ns + self._interval_ns
            return
        if any(now[one].at_ns <= self._seen[one].at_ns for one in workers):
            return
        before, self._seen = self._seen, now
        self._due_ns = now_ns + self._interval_ns
        self.decisions.note_merges(before.values(), now.values(), now_ns)
        self._adapt(LoadsBetween(self._plan, before, now), now_ns)

    def _begin(self, attempt: int, now_ns: int) -> None:
        """Begin with an attempt, and let its workers have the limits that are known here.

        They have those of the plan, or, if this controller took over from another, that one's.
        """
        self._attempt, self._seen = attempt, {}
        self._due_ns = now_ns
        self._send_limits()

    def _adapt(self, loads: LoadsBetween, now_ns: int) -> None:
        changes = [self._adapt_slices(self._plan.edges[one], loads, now_ns) for one in self._slices]
        if any(changes):
            self._send_limits()
        for stage in self._plan.stages:
            if stage.id in self._scaling:
                found = self._scaling[stage.id].observe(loads.work_of(stage))
                if found is not None:
                    self._note(stage.head, Decides.PROPOSED_DOP, found, found.dop, now_ns)

    def _adapt_slices(self, edge: Edge, loads: LoadsBetween, now_ns: int) -> bool:
        load = loads.slices_of(edge)
        found = None if load is None else self._slices[edge.id].observe(load)
        if found is None:
            return False
        if len(self._plan.out_edges(edge.source_stage)) > 1:
            target = self._plan.stages[edge.target_stage].head
            found = replace(found, reason=f"what goes to {target}: {found.reason}")
        self._note(edge.source_operator, found.decides, found, found.value, now_ns)
        return True

    def _note(
        self,
        operator: str,
        decides: Decides,
        found: SliceChange | DopProposal,
        value: float,
        now_ns: int,
    ) -> None:
        step = OptimizerDecision(
            operator, decides, value, found.formula, found.numbers, found.reason
        )
        self.decisions.add(step, now_ns)

    def _send_limits(self) -> None:
        """Tell the workers the limits of all edges, if slices follow the rate at all."""
        limits = {
            edge: SliceLimits(policy.wait_ns, policy.rows) for edge, policy in self._slices.items()
        }
        if limits:
            self._tell(LimitSlices(limits))

    def _may_scale(self, stage: Stage) -> bool:
        """Whether another parallelism of a stage could be proposed: not that of a source."""
        edges = self._plan.in_edges(stage.id)
        return bool(edges) and not any(isinstance(one.grouping, _NAMES_INSTANCES) for one in edges)
