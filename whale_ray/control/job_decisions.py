"""The one log of what was decided on a job, before it began and while it runs.

Slices and proposals (`Adaptation`), out-degrees of multicast trees (`TreeController`) and whether
aggregates are computed early (in the workers) are decided in different places; all come here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from ..configs.units import NS_PER_S
from ..metrics.counters import MemberCounters
from ..multicast.tree_state import SwitchReport
from ..operators.windows.reduction import LEAST_REDUCTION
from ..optimizer.decisions import Decides, DecisionLog, OptimizerDecision
from ..plan.logical import OperatorKind
from ..plan.physical import PhysicalPlan

if TYPE_CHECKING:
    from ..operators.windows.partial_aggregation import PartialAggregation

__all__ = ["JobDecisions"]

_KEPT_MAX = 1_000


class JobDecisions:
    """All decisions on one job, the oldest first; of those while it runs the last 1,000.

    Args:
        plan: of the job.
        before: what the optimizer decided before the job began.
        began_ns: on the controller's monotonic clock.
    """

    def __init__(
        self, plan: PhysicalPlan, before: Iterable[OptimizerDecision], began_ns: int
    ) -> None:
        self._plan = plan
        self._before = tuple(before)
        self._began_ns = began_ns
        self._made: deque[OptimizerDecision] = deque(maxlen=_KEPT_MAX)
        self._switched: set[tuple[int, int, int]] = set()
        self._merges: dict[str, bool] = {}
        self._left_out = 0

    @property
    def log(self) -> DecisionLog:
        """The decisions; callable from any thread."""
        # `copy` is one call in C: another thread cannot add a decision meanwhile.
        return DecisionLog(self._plan.name, (*self._before, *self._made.copy()), self._left_out)

    def add(self, step: OptimizerDecision, now_ns: int) -> None:
        """Keep a decision that was made at a time."""
        self._left_out += len(self._made) == _KEPT_MAX
        self._made.append(replace(step, at_s=(now_ns - self._began_ns) / NS_PER_S))

    def note_switches(self, switches: Iterable[SwitchReport]) -> None:
        """Keep the switches of trees that are not kept yet."""
        for switch in switches:
            # Each attempt counts its switches from 1.
            name = switch.stream, switch.epoch, switch.decided_ns
            if name not in self._switched:
                self._switched.add(name)
                self.add(self._of_switch(switch), switch.decided_ns)

    def note_merges(
        self,
        before: Iterable[MemberCounters],
        now: Iterable[MemberCounters],
        now_ns: int,
    ) -> None:
        """Keep whether partial aggregates step aside, where that has changed between two looks."""
        earlier, newest = _merged(before), _merged(now)
        for node in self._plan.logical.of_kind(OperatorKind.PARTIAL):
            if not cast("PartialAggregation", node.payload).measures or node.id not in newest:
                continue
            rows, out, deltas = (
                late - soon
                for late, soon in zip(newest[node.id], earlier.get(node.id, (0, 0, 0)), strict=True)
            )
            passed = out - deltas
            merges = passed <= rows / 2
            if (deltas > 0 or passed > 0) and self._merges.get(node.id) is not merges:
                self._merges[node.id] = merges
                self.add(_of_merge(node.id, rows, deltas, passed, merges=merges), now_ns)

    def _of_switch(self, switch: SwitchReport) -> OptimizerDecision:
        ring = next((one for one in self._plan.rings if one.id == switch.stream), None)
        operator = "" if ring is None else self._plan.edges[ring.edge].source_operator
        numbers: dict[str, float] = {
            "stream": switch.stream,
            "degree_before": switch.degree_before,
            "moves": switch.moves,
        }
        load = switch.load
        if load is not None:
            numbers |= {"wanted_degree": load.wanted_degree, "l_slices": load.queue_slices}
            numbers |= {"Q_slices": load.capacity_slices}
            for name, number in (("lambda_per_s", load.rate_slices_per_s), ("t_d_s", load.send_s)):
                if number is not None:
                    numbers[name] = number
        reason = switch.why
        if load is not None and reason in ("scale-up", "scale-down"):  # the load asked for it
            reason += f": {load.reason}"
        if switch.aborted:
            reason += f"; aborted: {switch.aborted}"
        degree = switch.degree_before if switch.aborted else switch.degree_after
        formula = "d* = ⌊(ρ*/λ - t_s) / t_d⌋"
        return OptimizerDecision(operator, Decides.OUT_DEGREE, degree, formula, numbers, reason)


def _merged(counters: Iterable[MemberCounters]) -> Mapping[str, tuple[int, int, int]]:
    """Return the rows in, the rows out and the deltas among them, by operator."""
    found: dict[str, tuple[int, int, int]] = {}
    for worker in counters:
        for one in worker.instances:
            rows, out, deltas = found.get(one.operator_id, (0, 0, 0))
            found[one.operator_id] = (
                rows + one.rows_in,
                out + one.rows_out,
                deltas + one.deltas_out,
            )
    return found


def _of_merge(
    operator: str, rows: int, deltas: int, passed: int, *, merges: bool
) -> OptimizerDecision:
    numbers = {"rows_in": rows, "deltas_out": deltas, "passed_on": passed}
    if merges:
        reason = "a delta stands for enough rows, so groups are aggregated where they are made"
    else:
        reason = "a delta would stand for few rows, so they are passed on and aggregated there"
    return OptimizerDecision(
        operator,
        Decides.LATE_MERGE,
        int(merges),
        f"rows in / deltas out ≥ {LEAST_REDUCTION}",
        numbers,
        reason,
    )
