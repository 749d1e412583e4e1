"""`DecisionEngine`: keeps the average price of contracts and decides what to buy and sell."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from ...operators.process import InstanceContext, Output, Process
from ...transport.clock import Clock, SystemClock
from ...transport.wire.batch import Batch
from ...transport.wire.types import Schema
from ..shared.columns import frozen
from .engine_kernels import CONTRACT, decide
from .schemas import DECIDED, DECISION, KEPT, TRADE, TRADES, packed

__all__ = ["DecisionEngine", "DecisionRule", "warm_up"]


class DecisionRule:
    """Decides which contracts to buy and sell by their average prices, as a function on columns."""

    def __init__(
        self,
        rights: npt.NDArray[np.int64],
        strikes_milli: npt.NDArray[np.int64],
        threshold_bp: int,
        clock: Clock | None = None,
    ) -> None:
        """Take right and strike by contract number, the threshold and the clock for timestamps."""
        self._contracts = np.zeros(len(rights), CONTRACT)
        self._contracts["right"] = rights
        self._contracts["strike_milli"] = strikes_milli
        self._threshold_bp = threshold_bp
        self._clock = clock or SystemClock()

    def __call__(self, batch: Batch) -> Batch | None:
        """Return decisions, rows of `DECIDED`, for trades, rows of `TRADES`; None without any."""
        in_ns = self._clock.monotonic_ns()
        trades = np.ascontiguousarray(batch.column("trade").data).view(TRADE)
        decisions = np.empty(batch.num_rows, DECISION)
        numbers = frozen(batch.column("contract").data)
        made = decide(
            self._contracts, numbers, frozen(trades), self._threshold_bp, in_ns, decisions
        )
        if made == 0:
            return None
        decided = decisions[:made].copy()
        column = packed(DECIDED, "decision", decided)
        result = Batch(DECIDED, [column], made, None, batch.origin_ns)
        # The timestamp comes last; nothing else uses the batch yet, so it may still change.
        decided["engine_out_ns"] = self._clock.monotonic_ns()
        return result

    @property
    def traded(self) -> Batch:
        """What is kept of the contracts that were traded, rows of `KEPT`."""
        numbers = np.flatnonzero(self._contracts["quantity"])
        kept = self._contracts[numbers]
        columns = {name: np.ascontiguousarray(kept[name]) for name in KEPT.names[1:]}
        return Batch.from_pydict({"contract": numbers.astype(np.int32), **columns}, KEPT)

    def take_back(self, kept: Batch) -> None:
        """Continue with contracts where another rule stopped; rows of `KEPT`."""
        for name in KEPT.names[1:]:
            self._contracts[name][kept["contract"]] = kept[name]


class DecisionEngine(Process):
    """A `DecisionRule` after a grouping; one object serves all instances of a worker."""

    per_worker: ClassVar[bool] = True
    schema: Schema | None = DECIDED

    def __init__(self, make: partial[DecisionRule]) -> None:
        """Take a function that creates the rule on the worker."""
        self._make = make

    def open(self, context: InstanceContext) -> None:
        """Start without trades, and load the compiled loop before the first one arrives."""
        self._context = context
        self._rule = self._make(clock=context.clock)
        warm_up()

    def on_batch(self, batch: Batch, out: Output) -> None:
        """Emit the decisions for a batch of trades."""
        decided = self._rule(batch)
        if decided is not None:
            out.emit(decided)

    def dump(self, nodes: npt.NDArray[np.int64]) -> Iterable[Batch]:
        """Return the contracts that were traded, rows of `KEPT`."""
        kept = self._rule.traded
        yield kept.filter(np.isin(self._context.nodes_of(kept, ("contract",)), nodes))

    def load(self, batch: Batch) -> None:
        """See `Process.load`."""
        self._rule.take_back(batch)


def warm_up() -> None:
    """Load the compiled loop before the first trade arrives."""
    nothing = np.zeros(0, np.int64)
    DecisionRule(nothing, nothing, 1)(Batch.empty(TRADES))
