"""Equations (2) to (4) of Aeolus for one node: how busy its instances are, and what helps.

The paper has one input whose rows are shared out evenly, and one output row for each. Here a node
has several inputs, whose rows are shared out or go to every instance, and several outputs with a
selectivity each. With one such input and output these are the paper's equations::

    busy(d, b) = (ppt + n / b + t · s) · r_i / d  ≤  1              (3): the node keeps up
    d > ppt · r_i                                                  (2)
    b ≥ n / (d / r_i - ppt - t · s)                                (4)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..configs.units import NS_PER_S
from .dataflow import DataflowEdge, DataflowNode, Distribution, SendingCosts

__all__ = ["Arrivals", "NodeLoad"]


_TOLERANCE = 1e-9
"""By which sums of costs may exceed a limit: that much is lost when floats are added."""


@dataclass(frozen=True)
class Arrivals:
    """The rows that come to a node.

    Args:
        spread_per_s: rows that are shared out evenly.
        keyed: rate, and the part that the most frequent key has, of each input by key.
        all_per_s: rows that go to every instance.
        slices: batches that are sent in a second, and their rows, of each input; one is divided
            among the instances, so with few rows not all of them get a message.
    """

    spread_per_s: float = 0.0
    keyed: tuple[tuple[float, float], ...] = ()
    all_per_s: float = 0.0
    slices: tuple[tuple[float, float], ...] = ()

    @classmethod
    def of(
        cls, inputs: Sequence[tuple[DataflowEdge, float]], batch_rows: Sequence[float] = ()
    ) -> Arrivals:
        """Return what comes by edges that carry so many rows per second, in such batches."""
        by_kind = {
            kind: [(edge, rate) for edge, rate in inputs if edge.distribution is kind]
            for kind in Distribution
        }
        return cls(
            sum(rate for _, rate in by_kind[Distribution.SPREAD]),
            tuple((rate, edge.largest_share) for edge, rate in by_kind[Distribution.KEY]),
            sum(rate for _, rate in by_kind[Distribution.ALL]),
            tuple(
                (rate / rows, math.inf if edge.distribution is Distribution.ALL else rows)
                for (edge, rate), rows in zip(inputs, batch_rows, strict=bool(batch_rows))
            ),
        )

    @property
    def rows_per_s(self) -> float:
        """All of them (r_i); one that goes to all instances counts once."""
        return self.spread_per_s + sum(rate for rate, _ in self.keyed) + self.all_per_s

    def messages_per_s(self, dop: int) -> float:
        """Return how many messages each of `dop` instances gets."""
        return sum(per_s * min(1.0, rows / dop) for per_s, rows in self.slices)

    def share_per_s(self, dop: int) -> float:
        """Return how many rows' worth of work the busiest of `dop` instances has (1 / l_i)."""
        keyed = sum(rate * max(1 / dop, share) for rate, share in self.keyed)
        return (self.spread_per_s + self.all_per_s) / dop + keyed


@dataclass(frozen=True)
class NodeLoad:
    """A node, what comes to it and what it sends."""

    node: DataflowNode
    arrivals: Arrivals
    outputs: tuple[DataflowEdge, ...]
    sending: SendingCosts

    @property
    def rows_out(self) -> float:
        """How many rows leave the node for each that comes, over all edges."""
        return sum(edge.selectivity for edge in self.outputs)

    @property
    def message_ns(self) -> float:
        """What a message costs that it sends (n)."""
        own = self.node.message_ns
        return self.sending.message_ns if own is None else own

    @property
    def bytes_ns(self) -> float:
        """What the bytes of the rows cost that leave for each that comes (t · s)."""
        sent = sum(edge.selectivity * edge.row_bytes for edge in self.outputs)
        return sent * self.sending.byte_ns

    def processing(self, dop: int) -> float:
        """Return for what part of the time the busiest of `dop` instances processes rows."""
        shared = self.arrivals.share_per_s(dop) * self.node.ppt_ns
        return (shared + self._each_ns_per_s(dop)) / NS_PER_S

    def _each_ns_per_s(self, dop: int) -> float:
        """Return what each of `dop` instances spends on what is not shared out among them."""
        each = self.arrivals.all_per_s * self.node.ppt_each_ns
        each += self.arrivals.rows_per_s * self.node.progress_ns
        return each + self.arrivals.messages_per_s(dop) * self.node.receive_ns

    def busy(self, dop: int, batch_rows: float) -> float:
        """Return for what part of the time it processes and sends; above 1 it cannot keep up.

        Of the paper's equation (3): l_i · busy is the time for a row, so that a node that is busy
        all the time emits r_o = r_i / busy.
        """
        sending_ns = self.rows_out * self.message_ns / batch_rows + self.bytes_ns
        return self.processing(dop) + self.arrivals.share_per_s(dop) * sending_ns / NS_PER_S

    def keeps_up(self, dop: int, batch_rows: float) -> bool:
        """Return whether an instance is never behind, for long, with what comes to it."""
        is_idle_at_times = self.processing(dop) < 1
        return is_idle_at_times and self.busy(dop, batch_rows) <= 1 + _TOLERANCE

    def batch_rows(self, dop: int) -> float:
        """Return the smallest batch with which `dop` instances keep up (4); inf for none."""
        spare = 1 - self.busy(dop, math.inf)
        messages = self.arrivals.share_per_s(dop) * self.rows_out * self.message_ns
        if messages <= (spare + _TOLERANCE) * NS_PER_S:
            return 1
        if spare <= 0:
            return math.inf
        return math.ceil(messages / (spare * NS_PER_S) * (1 - _TOLERANCE))

    def cores(self, dop: int, batch_rows: float) -> float:
        """Return how many cores all of `dop` instances keep busy together."""
        everywhere = self._each_ns_per_s(dop) * dop
        sending_ns = self.rows_out * self.message_ns / batch_rows + self.bytes_ns
        shared = self.arrivals.rows_per_s * (self.node.ppt_ns + sending_ns)
        return (shared + everywhere) / NS_PER_S


def smallest_dop(is_enough: Callable[[int], bool], dop_max: int) -> int | None:
    """Return the smallest number up to `dop_max` that is enough; None if not even that is.

    `is_enough` must hold for all numbers above one for which it holds.
    """
    if not is_enough(dop_max):
        return None
    low, high = 1, dop_max
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle + 1, high)
    return low
