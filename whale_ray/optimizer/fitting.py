"""What a stage's rows and messages cost, fitted to what it took in trials with different batches.

The processor time of a stage is a sum: so much for each row that it takes, for each message that it
receives and for each that it sends (n of Aeolus). Trials with other batches have other numbers of
messages for the same rows, which tells these costs apart.

Every instance follows the watermarks, and ends each window, whatever part of the rows it has. So a
row costs each instance something besides, by the time that passes with it. A trial with another
number of instances tells that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

__all__ = ["StageCosts", "StageWork", "fit_costs"]

_ROUNDING = 1e-12
"""Sums of squared relative errors that differ by less are alike."""


@dataclass(frozen=True)
class StageWork:
    """What a stage did in a trial, on all workers together.

    Args:
        cpu_ns: the processor time that it took.
        rows: that it took.
        received: messages that it received.
        sent: messages that it sent.
        instances: how many shared the rows.
        weight: how much it counts: the part of the time for which it was to be measured.
    """

    cpu_ns: float
    rows: float
    received: float
    sent: float
    instances: int = 1
    weight: float = 1.0

    @property
    def row_ns(self) -> float:
        """What a row took, with its part of the messages."""
        return self.cpu_ns / self.rows if self.rows else 0.0


@dataclass(frozen=True)
class StageCosts:
    """What a stage's work costs, in nanoseconds.

    Args:
        row_ns: each row that it takes, with what it emits for it.
        receive_ns: each message that it receives.
        send_ns: each message that it sends.
        each_ns: what a row costs each instance besides, whichever of them takes it.
    """

    row_ns: float
    receive_ns: float
    send_ns: float
    each_ns: float = 0.0

    def cpu_ns(self, work: StageWork) -> float:
        """Return what some work takes; its own `cpu_ns` is not used."""
        rows_ns = (self.row_ns + self.each_ns * work.instances) * work.rows
        return rows_ns + self.receive_ns * work.received + self.send_ns * work.sent


def fit_costs(trials: Sequence[StageWork]) -> StageCosts:
    """Return the costs that explain trials best; no cost is negative.

    The relative errors are made small, by least squares; a trial that was cut short counts less.
    With so few costs, the solution without negative ones is the best of those that leave some costs
    out: all are tried. Of those that explain the trials alike, as any one cost explains a single
    trial, the cost of rows is taken.

    Args:
        trials: with different batches; those without work are left out. Without any, all costs are
            0: there is nothing to be said of a stage that did nothing.
    """
    useful = [work for work in trials if work.cpu_ns > 0 and work.rows > 0]
    if not useful:
        return StageCosts(0.0, 0.0, 0.0)
    spent = np.array([work.cpu_ns for work in useful])
    weights = np.sqrt([work.weight for work in useful])
    counts = np.array([_counts(work) for work in useful]) * (weights / spent)[:, None]
    kinds = counts.shape[1]
    best, least = np.zeros(kinds), np.inf
    for size in range(1, kinds + 1):
        for chosen in combinations(range(kinds), size):
            costs = np.zeros(kinds)
            columns = counts[:, list(chosen)]
            if not columns.any(axis=0).all():
                continue
            costs[list(chosen)] = np.linalg.lstsq(columns, weights, rcond=None)[0]
            error = float(np.square(counts @ costs - weights).sum())
            if (costs >= 0).all() and error < least - _ROUNDING:
                best, least = costs, error
    return StageCosts(*(float(cost) for cost in best))


def _counts(work: StageWork) -> list[float]:
    """Return how often each of the costs is due, in their order."""
    return [work.rows, work.received, work.sent, work.rows * work.instances]
