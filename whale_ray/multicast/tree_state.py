"""A stream's tree in the controller: the wanted shape, the coordinator's record, its switches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias, get_args

from ..configs.errors import UsageError
from .switch_protocol import SwitchRecord
from .tree_messages import SetAddressing
from .trees import Route, Tree


@dataclass(frozen=True)
class Goal:
    """The wanted shape of a tree; `degree` 0 of a non-blocking tree: what the load allows."""

    route: Route
    degree: int = 0


ReconfigurationRequest: TypeAlias = Goal | SetAddressing
"""What a user may change of the broadcast streams of a running job."""


def check_goal(goal: Goal) -> Goal:
    """Return it; raises UsageError if there is no such route, or it has no such out-degree."""
    if goal.route not in get_args(Route):
        known = ", ".join(get_args(Route))
        msg = f"there is no route {goal.route!r}; use one of: {known}"
        raise UsageError(msg)
    if goal.degree < 0 or (goal.degree and goal.route != "non-blocking"):
        msg = (
            f"out_degree={goal.degree} with route {goal.route!r}: only a non-blocking tree has "
            "one, 1 or more, or 0 to compute it from the load"
        )
        raise UsageError(msg)
    return goal


@dataclass(frozen=True)
class TreeState:
    """What a controller's successor needs of one stream."""

    goal: Goal
    record: SwitchRecord


@dataclass(frozen=True)
class TreeLoad:
    """What decides on the out-degree of one stream's source (Whale 3.3), all in slices.

    Attributes:
        rate_slices_per_s: λ, smoothed; None until something has arrived.
        wanted_degree: d* of the last decision that asked for one.
        queue_slices: l, as last reported.
        capacity_slices: Q.
        send_s: t_d; None until a slice was sent.
        reason: why the degree is what it is.
    """

    rate_slices_per_s: float | None
    wanted_degree: int
    queue_slices: float
    capacity_slices: float
    send_s: float | None
    reason: str


@dataclass(frozen=True)
class SwitchReport:
    """One switch of one stream's tree, for metrics; times are the controller's, monotonic ns.

    Attributes:
        stream: the ring.
        why: scale-up or scale-down, which the load asks for; reshape, which a user does; repair;
            return.
        before, after: the trees; `after` was not reached if it was aborted.
        moves: number of hosts that changed their parent.
        epoch: the new tree's number.
        decided_ns: when it began.
        committed_ns: when all were ready; None if it was aborted.
        ended_ns: when all had moved; None while it is under way.
        aborted: why it was aborted; "" if it was not.
        load: of the stream when it was decided; None before the first report of it.
    """

    stream: int
    why: str
    before: Tree
    after: Tree
    moves: int
    epoch: int
    decided_ns: int
    committed_ns: int | None = None
    ended_ns: int | None = None
    aborted: str = ""
    load: TreeLoad | None = None

    @property
    def degree_before(self) -> int:
        """The highest out-degree before the switch."""
        return self.before.degree

    @property
    def degree_after(self) -> int:
        """The highest out-degree after it."""
        return self.after.degree
