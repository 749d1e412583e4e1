"""Algorithm 1 of Aeolus: degrees of parallelism and batches, from the sources down.

The paper's algorithm takes each node once, its producers before it: the instances that its work
needs (2), then the smallest batch with which they can send all that they produce (4), and if no
batch up to B_max suffices, more instances. So latency is the smallest at which everything is
carried. Three things are added:

- Nodes have several inputs and outputs, selectivities, and inputs whose rows go to all instances
  (`rates`).
- Where a node cannot carry its rows with any number of instances, or the cores are too few, the
  part of the sources' rates is found that can be carried, and the operator is named that limits it.
- Where only the cores are too few, batches are as large as possible: that saves messages. With
  several hosts each must have the cores for what the planner places there.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from .dataflow import Dataflow, DataflowNode, OptimizerLimits, SendingCosts
from .decisions import Choice, Decides, OptimizerDecision, choices_after
from .rates import Arrivals, NodeLoad, smallest_dop

__all__ = ["Optimization", "optimize"]

_BISECTIONS = 60


@dataclass(frozen=True)
class Optimization:
    """What the optimizer decided, and predicts.

    Attributes:
        choices: the degree of parallelism, batch and rate of each node, by its id.
        throughput: the part of the sources' rates that is carried: 1 for all.
        limited_by: the node that limits it; "" if nothing does, or the cores do.
        cores: how many cores all instances keep busy.
        steps: the decisions, in their order.
    """

    choices: Mapping[str, Choice]
    throughput: float
    limited_by: str
    cores: float
    steps: tuple[OptimizerDecision, ...]


@dataclass
class _Pass:
    """One run through the nodes.

    Attributes:
        steps: the decisions.
        cores: how many each node keeps busy.
        overloaded: how busy each node would have to be that cannot keep up: more than 1.
        rates: the rows per second that each node takes.
        batches: how many rows each sends together.
        dops: how many instances each has.
    """

    steps: list[OptimizerDecision] = field(default_factory=list)
    cores: dict[str, float] = field(default_factory=dict)
    overloaded: dict[str, float] = field(default_factory=dict)
    rates: dict[str, float] = field(default_factory=dict)
    batches: dict[str, int] = field(default_factory=dict)
    dops: dict[str, int] = field(default_factory=dict)

    @property
    def all_cores(self) -> float:
        """How many cores all nodes together keep busy."""
        return sum(self.cores.values())


def optimize(
    dataflow: Dataflow, sending: SendingCosts, limits: OptimizerLimits | None = None
) -> Optimization:
    """Return the smallest degrees of parallelism, then the smallest batches, that carry all rows.

    Args:
        dataflow: with measured costs.
        sending: what a message costs.
        limits: of the machines.
    """
    optimizer = _Optimizer(dataflow, sending, limits or OptimizerLimits())
    wanted = optimizer.run(1.0)
    if not wanted.overloaded and optimizer.has_cores_for(wanted):
        return optimizer.result(wanted, 1.0, ())
    thrifty = optimizer.run(1.0, scarce=True)
    if not wanted.overloaded and optimizer.has_cores_for(thrifty):
        return optimizer.result(thrifty, 1.0, ())
    throughput = optimizer.throughput()
    limit = optimizer.limit(thrifty, throughput)
    return optimizer.result(
        optimizer.run(throughput, scarce=True), throughput, (*wanted.steps, limit)
    )


def host_of_core(cores: int, hosts: int) -> tuple[int, ...]:
    """Return the host of each core: neighbours share one, and hosts have as many, or one less."""
    return tuple(sorted(core % hosts for core in range(cores)))


class _Optimizer:
    """Runs through the nodes of a dataflow with more and less of the sources' rates."""

    def __init__(self, dataflow: Dataflow, sending: SendingCosts, limits: OptimizerLimits) -> None:
        self._dataflow, self._sending, self._limits = dataflow, sending, limits

    def run(self, throughput: float, *, scarce: bool = False) -> _Pass:
        """Decide for every node, with that part of the sources' rates.

        Where cores are scarce, batches are as large as possible, and of each node all hosts get as
        many instances.
        """
        made = _Pass()
        for node in self._dataflow.in_order:
            load = self._load(node, made, throughput)
            largest = self._largest_batch(load)
            dop = made.dops[node.id] = self._dop(load, largest, made, evenly=scarce)
            wanted = largest if scarce else min(largest, load.batch_rows(dop))
            batch_rows = made.batches[node.id] = int(wanted)
            self._note_batch(load, dop, batch_rows, largest, made)
            self._note_rate(load, dop, batch_rows, made)
        return made

    def has_cores_for(self, made: _Pass) -> bool:
        """Return whether the machines have the cores that a run needs."""
        return all(sum(busy.values()) <= cores * (1 + 1e-9) for cores, busy in self._by_host(made))

    def _by_host(self, made: _Pass) -> list[tuple[int, dict[str, float]]]:
        """Return how many cores each host has, and how many each node keeps busy there."""
        cores, hosts = self._limits.cores, self._limits.hosts
        if cores is None:
            return []
        if hosts == 1:
            return [(cores, made.cores)]
        host_of = host_of_core(cores, hosts)
        found: list[tuple[int, dict[str, float]]] = [(host_of.count(h), {}) for h in range(hosts)]
        singles = itertools.count()
        for node_id, dop in made.dops.items():
            first = next(singles) if dop == 1 else 0
            for instance in range(dop):  # as the planner places them, with a worker for each core
                busy = found[host_of[(first + instance * cores // dop) % cores]][1]
                busy[node_id] = busy.get(node_id, 0.0) + made.cores[node_id] / dop
        return found

    def throughput(self) -> float:
        """Return the largest part of the sources' rates that can be carried."""
        low, high = 0.0, 1.0
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            made = self.run(middle, scarce=True)
            if made.overloaded or not self.has_cores_for(made):
                high = middle
            else:
                low = middle
        return low

    def limit(self, wanted: _Pass, throughput: float) -> OptimizerDecision:
        """Return why not everything can be carried."""
        percent = f"{throughput:.1%} of the sources' rates can be carried"
        if wanted.overloaded:
            node_id = max(wanted.overloaded, key=lambda one: wanted.overloaded[one])
            busy = wanted.overloaded[node_id]
            return OptimizerDecision(
                node_id,
                Decides.THROUGHPUT,
                throughput,
                "busy(dop, B_max) > 1",
                {"busy": busy},
                f"{percent}: an instance of {node_id!r} would have to be busy {busy:.0%} of the"
                " time, and more of them would not help",
            )
        by_host = self._by_host(wanted)
        host = max(
            range(len(by_host)), key=lambda one: sum(by_host[one][1].values()) / by_host[one][0]
        )
        cores, placed = by_host[host]
        needed = sum(placed.values())
        most = max(placed, key=lambda one: placed[one])
        numbers: dict[str, float] = {"cores_needed": needed, "cores": cores}
        who, where = "all operators together", "there are"
        if self._limits.hosts > 1:
            numbers["host"] = host
            who, where = f"what is placed on host-{host}", "it has"
        return OptimizerDecision(
            "",
            Decides.THROUGHPUT,
            throughput,
            "Σ busy · dop > cores",
            numbers,
            f"{percent}: {who} would keep {needed:.3g} cores busy, {where} {cores};"
            f" {most!r} takes the most, {placed[most]:.3g}",
        )

    def result(
        self, made: _Pass, throughput: float, before: tuple[OptimizerDecision, ...]
    ) -> Optimization:
        """Return a run as the result; `before` are the steps that led to it."""
        limited_by = before[-1].operator if before else ""
        steps = (*before, *made.steps)
        return Optimization(
            choices_after(made.steps), throughput, limited_by, made.all_cores, steps
        )

    def _load(self, node: DataflowNode, made: _Pass, throughput: float) -> NodeLoad:
        inputs = self._dataflow.inputs(node.id)
        if node.rate_per_s is not None:
            arrivals = Arrivals(spread_per_s=node.rate_per_s * throughput)
        else:
            rates = [made.rates[edge.source] * edge.selectivity for edge in inputs]
            batches = [made.batches[edge.source] for edge in inputs]
            arrivals = Arrivals.of(list(zip(inputs, rates, strict=True)), batches)
        return NodeLoad(node, arrivals, self._dataflow.outputs(node.id), self._sending)

    def _largest_batch(self, load: NodeLoad) -> int:
        """Return B_max in rows: of the output with the largest ones."""
        row_bytes = max((edge.row_bytes for edge in load.outputs), default=0.0)
        return max(1, math.floor(self._limits.batch_bytes_max / max(row_bytes, 1.0)))

    def _dop(self, load: NodeLoad, largest: int, made: _Pass, *, evenly: bool) -> int:
        """Return the smallest degree of parallelism that carries the rows, see `_note_dop`."""
        node = load.node
        if node.dop is not None:
            return self._note_dop(load, node.dop, "the user has set it", made)
        dop_max = min(self._limits.dop_max, node.dop_max or self._limits.dop_max)
        needed = smallest_dop(lambda dop: load.processing(dop) < 1, dop_max)
        enough = smallest_dop(lambda dop: load.keeps_up(dop, largest), dop_max)
        if enough is None:
            # Not even all keep up: as many as do any good.
            least = load.busy(dop_max, largest) * (1 + 1e-9)
            enough = smallest_dop(lambda dop: load.busy(dop, largest) <= least, dop_max)
            assert enough is not None, "the largest number is as good as itself"
            return self._note_dop(load, enough, "more would not make it faster", made)
        if evenly:
            hosts = self._limits.hosts
            enough = min(dop_max, math.ceil(enough / hosts) * hosts)
        reason = f"each instance processes {load.processing(enough):.0%} of the time"
        if evenly and self._limits.hosts > 1:
            reason += f"; as many on each of {self._limits.hosts} hosts"
        elif needed != enough:
            reason += f"; {needed} could not send all rows, even in batches of {largest} rows"
        return self._note_dop(load, enough, reason, made)

    def _note_dop(self, load: NodeLoad, dop: int, reason: str, made: _Pass) -> int:
        numbers = {"ppt_ns": load.node.ppt_ns, "rows_per_s": load.arrivals.rows_per_s}
        if load.arrivals.all_per_s:
            numbers |= {"ppt_each_ns": load.node.ppt_each_ns, "all_per_s": load.arrivals.all_per_s}
        formula = "min dop > ppt · r_i" if load.node.dop is None else "dop"
        made.steps.append(
            OptimizerDecision(load.node.id, Decides.DOP, dop, formula, numbers, reason)
        )
        return dop

    def _note_batch(self, load: NodeLoad, dop: int, rows: int, largest: int, made: _Pass) -> None:
        if not load.outputs:
            return
        share = load.arrivals.share_per_s(dop)
        numbers = {
            "n_ns": load.rows_out * load.message_ns,
            "l_i_ns": 1e9 / share if share else math.inf,
            "ppt_ns": load.node.ppt_ns,
            "t_s_ns": load.bytes_ns,
            "B_max": largest,
        }
        if rows == 1:
            reason = "single rows are sent in time"
        elif rows == largest:
            reason = "as many rows as a batch may have"
        else:
            reason = f"smaller batches cost more than the {1e9 / share:.3g} ns between two rows"
        made.steps.append(
            OptimizerDecision(
                load.node.id,
                Decides.BATCH_ROWS,
                rows,
                "min b ≥ n / (l_i - ppt - t · s), at most B_max",
                numbers,
                reason,
            )
        )

    def _note_rate(self, load: NodeLoad, dop: int, rows: int, made: _Pass) -> None:
        busy = load.busy(dop, rows)
        if not load.keeps_up(dop, rows):
            made.overloaded[load.node.id] = busy
        arriving = load.arrivals.rows_per_s
        taken = arriving / max(1.0, busy)
        made.rates[load.node.id] = taken
        made.cores[load.node.id] = load.cores(dop, rows) * (taken / arriving if arriving else 0.0)
        numbers = {"rows_per_s": arriving, "busy": busy, "selectivity": load.rows_out}
        reason = f"its busiest instance is busy {min(busy, 1):.0%} of the time"
        if busy > 1:
            reason = f"it would have to be busy {busy:.0%} of the time, and holds the rows back"
        made.steps.append(
            OptimizerDecision(
                load.node.id,
                Decides.RATE_OUT,
                taken * load.rows_out,
                "r_o = σ · r_i / max(1, busy)",
                numbers,
                reason,
            )
        )
