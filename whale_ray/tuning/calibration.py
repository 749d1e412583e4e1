"""Measures what the stages of a topology cost: n, s, ppt, t and selectivities (Aeolus, section II).

A few trials on real input have batches of different sizes, and one of them has single instances.
What a stage took in each of them tells what its rows cost, what they cost each instance besides and
what its messages cost (`optimizer.fitting`); rows and bytes are counted.

The same work takes more processor time in one second than in another: others use the caches, and
a virtual machine its processors. So all trials are repeated in rounds, which lie apart in time. Of
what a stage took in the rounds the middle counts, and each round by itself tells how far a
prediction is to be trusted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

from ..configs.units import NS_PER_MS, NS_PER_S
from ..metrics.loads import EdgeLoad, sent_by_edge, stage_cpu_ns
from ..operators.groupings import All, Key
from ..optimizer.dataflow import Dataflow, DataflowEdge, DataflowNode, Distribution, SendingCosts
from ..optimizer.decisions import Choice
from ..optimizer.fitting import StageCosts, StageWork, fit_costs
from ..optimizer.prediction import PlannedEdge, PlannedStage, Prediction, predict
from ..plan.logical import OperatorKind
from .applying import fixed_dop, in_batches_of, in_full_slices, with_choices
from .sending import measure_byte_ns
from .trials import Trial, TrialLength, run_trial, together

if TYPE_CHECKING:
    from ..configs.settings import Settings
    from ..operators.windows.partial_aggregation import PartialAggregation
    from ..plan.logical import LogicalPlan
    from ..plan.physical import Edge, PhysicalPlan, Stage

__all__ = [
    "CALIBRATION_BATCHES",
    "ROUNDS",
    "MeasuredTopology",
    "batches_told",
    "calibrate",
    "measured_in",
]

CALIBRATION_BATCHES: tuple[int | None, ...] = (None, 1, 8, 64)
"""The batches of the trials, in rows; None is slices that are cut by bytes, whatever batches the
topology has itself: what full ones cost must be known, too."""

ROUNDS = 3
"""How often each trial is repeated: a disturbance of one leaves the middle as it is."""

_FIRST = TrialLength(warm_up_s=4.0, measured_s=0.0)
"""A trial before the others, in which functions are compiled, and then kept on disk."""

_UNSIZED_ROW_BYTES = 64.0
_HELD_BACK = 1.25

EdgeKey = tuple[str, int, str, int]
"""An edge in any plan of a topology: its source, its output, its target, its port."""


@dataclass(frozen=True)
class MeasuredTopology:
    """What was measured.

    Attributes:
        plan: of the trials.
        trials: by their batches, see `CALIBRATION_BATCHES`; those of all rounds together.
        costs: of each stage, by its head.
        round_costs: the same as each round by itself tells them.
        stage_flow: rows that a stage takes for each that the sources read, by its head.
        edge_flow: the same for edges.
        row_bytes: of each edge, t of Aeolus.
        rows_at_once: of each source, how many rows it reads together.
        held_rows: of edges whose senders hold rows back, as until a window ends: how many all their
            instances together let go at once.
        gathers: of the other edges behind stages, how many times the rows are sent together that
            follow from one message.
        spread: of edges, to which part of the target's other workers a slice goes.
        byte_ns: what a byte costs, s of Aeolus.
    """

    plan: PhysicalPlan
    trials: Mapping[int | None, Trial]
    costs: Mapping[str, StageCosts]
    round_costs: tuple[Mapping[str, StageCosts], ...]
    stage_flow: Mapping[str, float]
    edge_flow: Mapping[EdgeKey, float]
    row_bytes: Mapping[EdgeKey, float]
    rows_at_once: Mapping[str, float]
    held_rows: Mapping[EdgeKey, float]
    gathers: Mapping[EdgeKey, float]
    spread: Mapping[EdgeKey, float]
    byte_ns: float

    @property
    def steps_aside(self) -> tuple[str, ...]:
        """Partial aggregates that are left out where they do not pay, which is not predicted."""
        partial = self.plan.logical.of_kind(OperatorKind.PARTIAL)
        return tuple(
            node.id for node in partial if cast("PartialAggregation", node.payload).measures
        )

    def rows_per_cpu_s(self, trial: Trial, cores: int) -> float:
        """Return what a trial's costs allow the sources to read, rows per second.

        Each stage counts with the rows that it took in the trial, weighed by the flow: rows may be
        on their way as it ends. The busiest worker limits it, or all cores together.
        """
        per_worker: dict[int, float] = {}
        for stage in trial.plan.stages:
            rows = _rows_taken(trial, stage)
            for load in trial.loads:
                spent = load.stage_cpu_ns.get(stage.id, 0)
                if rows and spent:
                    flow = self._flow_of(stage)
                    per_worker[load.worker] = per_worker.get(load.worker, 0.0) + spent / rows * flow
        needed_ns = max(max(per_worker.values(), default=0.0), sum(per_worker.values()) / cores)
        return NS_PER_S / needed_ns if needed_ns else 0.0

    def predict(
        self, planned: PhysicalPlan, settings: Settings, cores: int, rate_per_s: float | None = None
    ) -> Prediction:
        """Return the throughput and latency of a plan of the same topology."""
        stages = [self._planned_stage(stage) for stage in planned.stages]
        edges = [
            PlannedEdge(
                edge.source_stage,
                edge.target_stage,
                self.edge_flow.get(edge_key(edge), 0.0),
                isinstance(edge.grouping, All),
                self._most_rows(edge, settings),
                self.held_rows.get(edge_key(edge), 0.0),
                self.gathers.get(edge_key(edge), 1.0),
                self.spread.get(edge_key(edge), 1.0),
            )
            for edge in planned.edges
            if not edge.is_side_input
        ]
        wtl_ns = settings.transport.wtl_ms * NS_PER_MS
        return predict(stages, edges, cores=cores, wtl_ns=wtl_ns, rate_per_s=rate_per_s)

    def predicted_by_rounds(
        self, planned: PhysicalPlan, settings: Settings, cores: int
    ) -> tuple[float, ...]:
        """Return the throughput that each round by itself predicts, rows per second."""
        alone = [replace(self, costs=costs) for costs in self.round_costs]
        return tuple(one.predict(planned, settings, cores).rows_per_s for one in alone)

    def dataflow(self, cores: int, rates: Mapping[str, float]) -> tuple[Dataflow, SendingCosts]:
        """Return the topology as the optimizer takes it, with what was measured.

        Args:
            cores: of the machine.
            rates: rows per second that sources are to read, by their ids. The others are to read
                as many as the cores could process if messages cost nothing.
        """
        work_ns = sum(
            (costs.row_ns + costs.each_ns) * self.stage_flow[head]
            for head, costs in self.costs.items()
        )
        most_per_s = cores * NS_PER_S / work_ns if work_ns else 1.0
        fed = self._fed()
        nodes = tuple(self._node(stage, most_per_s, rates) for stage in fed.values())
        edges = tuple(
            self._edge(edge)
            for edge in self.plan.edges
            if not edge.is_side_input and edge.source_stage in fed
        )
        sends = [cost.send_ns for cost in self.costs.values() if cost.send_ns]
        mean_ns = sum(sends) / len(sends) if sends else 0.0
        return Dataflow(nodes, edges), SendingCosts(mean_ns, self.byte_ns)

    def _fed(self) -> dict[int, Stage]:
        """Return the stages, by id, but those that only a source without rows feeds.

        Such as that of a table, which was read before anything was measured.
        """
        found: dict[int, Stage] = {}
        for stage in self.plan.stages:
            feeds = _feeds(self.plan, stage)
            has_rows = any(edge.source_stage in found for edge in feeds)
            if has_rows or (not feeds and self._flow_of(stage)):
                found[stage.id] = stage
        return found

    def _node(self, stage: Stage, most_per_s: float, rates: Mapping[str, float]) -> DataflowNode:
        costs = self.costs[stage.head]
        flow = self.stage_flow[stage.head]
        sent_ns = sum(
            self.edge_flow[edge_key(edge)] / flow * self.row_bytes[edge_key(edge)] * self.byte_ns
            for edge in self.plan.out_edges(stage.id)
            if flow
        )
        is_source = not self.plan.operator(stage.head).inputs
        rate = rates.get(stage.head, most_per_s * flow) if is_source else None
        return DataflowNode(
            stage.head,
            max(0.0, costs.row_ns - sent_ns),
            rate_per_s=rate,
            dop=fixed_dop(self.plan, stage),
            receive_ns=costs.receive_ns,
            message_ns=costs.send_ns,
            progress_ns=costs.each_ns,
        )

    def _edge(self, edge: Edge) -> DataflowEdge:
        stages = self.plan.stages
        flow = self.stage_flow[stages[edge.source_stage].head]
        kind = Distribution.SPREAD
        if isinstance(edge.grouping, Key):
            kind = Distribution.KEY
        elif isinstance(edge.grouping, All):
            kind = Distribution.ALL
        return DataflowEdge(
            stages[edge.source_stage].head,
            stages[edge.target_stage].head,
            kind,
            self.edge_flow[edge_key(edge)] / flow if flow else 0.0,
            self.row_bytes[edge_key(edge)],
        )

    def _flow_of(self, stage: Stage) -> float:
        return self.stage_flow.get(stage.head, 0.0)

    def _planned_stage(self, stage: Stage) -> PlannedStage:
        """Return a stage with its costs; one that is fused of several has them together."""
        parts = [one for one in stage.operators if one in self.costs]
        flow = self._flow_of(stage)
        row_ns = sum(self.costs[one].row_ns * self.stage_flow[one] for one in parts)
        each_ns = sum(self.costs[one].each_ns * self.stage_flow[one] for one in parts)
        head = self.costs.get(stage.head, StageCosts(0.0, 0.0, 0.0))
        costs = StageCosts(
            row_ns / flow if flow else 0.0,
            head.receive_ns,
            max((self.costs[one].send_ns for one in parts), default=0.0),
            each_ns / flow if flow else 0.0,
        )
        at_once = self.rows_at_once.get(stage.head, 1.0)
        return PlannedStage(stage.head, costs, flow, stage.instance_worker, at_once)

    def _most_rows(self, edge: Edge, settings: Settings) -> float:
        if edge.batch_rows is not None:
            return float(edge.batch_rows)
        row_bytes = self.row_bytes.get(edge_key(edge), _UNSIZED_ROW_BYTES)
        return max(1.0, settings.transport.mms_bytes / max(1.0, row_bytes))


def calibrate(
    logical: LogicalPlan,
    settings: Settings,
    workers: int | None = None,
    *,
    length: TrialLength | None = None,
    batches: Sequence[int | None] = CALIBRATION_BATCHES,
    rounds: int = ROUNDS,
    on_trial: Callable[[str], None] = lambda _text: None,
) -> MeasuredTopology:
    """Run trials of a topology, and return what its stages cost.

    Args:
        logical: the topology, its sources made readable for workers.
        settings: of the job.
        workers: how many processes.
        length: of each trial.
        batches: of the trials.
        rounds: how often each trial is repeated.
        on_trial: told what each is, before it begins.

    Raises:
        UsageError: no row has been read in time.
        WhaleError: what the topology itself raises.
    """
    run_trial(logical, settings, workers, length=length or _FIRST)
    trials: dict[int | None, list[Trial]] = {rows: [] for rows in batches}
    single: list[Trial] = []
    for number in range(1, rounds + 1):
        which = f" ({number} of {rounds})" if rounds > 1 else ""
        for rows, found in trials.items():
            on_trial(batches_told(rows) + which)
            changed = in_full_slices(logical) if rows is None else in_batches_of(logical, rows)
            found.append(run_trial(changed, settings, workers, length=length))
        ones = _single_instances(logical, trials[batches[0]][0].plan)
        if ones is not None:
            on_trial("single instances" + which)
            single.append(run_trial(ones, settings, workers, length=length))
    return measured_in(trials, single)


def _single_instances(logical: LogicalPlan, planned: PhysicalPlan) -> LogicalPlan | None:
    """Return a topology with single instances where that may be chosen; None if it has them."""
    free = [stage for stage in planned.stages if fixed_dop(planned, stage) is None]
    if all(stage.parallelism == 1 for stage in free):
        return None
    return with_choices(in_full_slices(logical), planned, {one.head: Choice(1) for one in free})


def batches_told(rows: int | None) -> str:
    """Return what batches of so many rows are called; None is slices that are cut by bytes."""
    if rows is None:
        return "full slices"
    return "single rows" if rows == 1 else f"batches of {rows} rows"


def measured_in(
    trials: Mapping[int | None, Sequence[Trial]], single: Sequence[Trial] = ()
) -> MeasuredTopology:
    """Return what trials tell.

    Args:
        trials: by their batches, one of each round; the first are those with the largest.
        single: those with single instances.
    """
    pooled = {rows: together(found) for rows, found in trials.items()}
    largest = next(iter(pooled.values()))
    planned = largest.plan
    held_rows = _held_rows(largest)
    kinds = [*trials.values(), *([single] if single else [])]
    costs = {
        stage.head: fit_costs([_middle_work(found, stage) for found in kinds])
        for stage in planned.stages
    }
    round_costs = tuple(
        {stage.head: fit_costs([_work(one, stage) for one in each]) for stage in planned.stages}
        for each in zip(*kinds, strict=True)
    )
    stage_flow, edge_flow = _flows(planned, list(pooled.values()))
    sent = sent_by_edge(largest.loads)
    row_bytes = {
        edge_key(edge): sent[edge.id].nbytes / sent[edge.id].rows
        if edge.id in sent and sent[edge.id].rows
        else _UNSIZED_ROW_BYTES
        for edge in planned.edges
    }
    return MeasuredTopology(
        planned,
        pooled,
        costs,
        round_costs,
        stage_flow,
        edge_flow,
        row_bytes,
        _rows_at_once(largest),
        held_rows,
        {key: times for key, times in _gathers(largest).items() if key not in held_rows},
        _spread(largest),
        measure_byte_ns(),
    )


def edge_key(edge: Edge) -> EdgeKey:
    """Return what tells an edge from the others in all plans of a topology."""
    return edge.source_operator, edge.source_output, edge.target_operator, edge.port


def _feeds(planned: PhysicalPlan, stage: Stage) -> list[Edge]:
    """Return the edges that feed a stage, but those of tables, which are there before its rows."""
    return [edge for edge in planned.in_edges(stage.id) if not edge.is_side_input]


def _rows_taken(trial: Trial, stage: Stage) -> float:
    """Return how many rows a stage took; one that goes to all its instances counts once."""
    edges = _feeds(trial.plan, stage)
    if not any(isinstance(edge.grouping, All) for edge in edges):
        return float(trial.rows.get(stage.head, 0))
    sent = sent_by_edge(trial.loads)
    return float(sum(sent.get(edge.id, EdgeLoad()).rows for edge in edges))


def _middle_work(trials: Sequence[Trial], stage: Stage) -> StageWork:
    """Return what a stage did in that of the trials in which a row took it a middling time."""
    found = sorted((_work(trial, stage) for trial in trials), key=lambda work: work.row_ns)
    worked = [work for work in found if work.row_ns > 0] or found
    return worked[(len(worked) - 1) // 2]


def _work(trial: Trial, like: Stage) -> StageWork:
    """Return what a stage did in a trial; of messages sent to it, those whose rows it took.

    Nothing, if the trial's plan has no stage with the same operators.
    """
    planned, sent = trial.plan, sent_by_edge(trial.loads)
    stage = next((one for one in planned.stages if one.operators == like.operators), None)
    if stage is None:
        return StageWork(0.0, 0.0, 0.0, 0.0)
    rows = _rows_taken(trial, stage)
    received = rows_sent = 0.0
    for edge in _feeds(planned, stage):
        load = sent.get(edge.id, EdgeLoad())
        readers = len(stage.workers) if isinstance(edge.grouping, All) else 1
        received += load.messages * readers
        rows_sent += load.rows
    if rows_sent:
        received *= rows / rows_sent
    out = sum(sent.get(edge.id, EdgeLoad()).messages for edge in planned.out_edges(stage.id))
    cpu_ns = stage_cpu_ns(trial.loads).get(stage.id, 0)
    return StageWork(cpu_ns, rows, received, out, stage.parallelism, trial.share)


def _flows(
    planned: PhysicalPlan, trials: Sequence[Trial]
) -> tuple[dict[str, float], dict[EdgeKey, float]]:
    """Return how many rows each stage takes, and each edge carries, for one that is read.

    From the sources down: what an edge carries is measured against what its own source took, so
    rows that are on their way do not matter.
    """
    read = sum(trial.rows_read for trial in trials)
    stage_flow: dict[str, float] = {}
    edge_flow: dict[EdgeKey, float] = {}
    for stage in planned.stages:
        taken = sum(_rows_taken(trial, stage) for trial in trials)
        edges = _feeds(planned, stage)
        if edges:
            stage_flow[stage.head] = sum(edge_flow[edge_key(edge)] for edge in edges)
        else:
            stage_flow[stage.head] = taken / read if read else 0.0
        for edge in planned.out_edges(stage.id):
            sent = sum(sent_by_edge(one.loads).get(edge.id, EdgeLoad()).rows for one in trials)
            share = sent / taken if taken else 0.0
            edge_flow[edge_key(edge)] = share * stage_flow[stage.head]
    return stage_flow, edge_flow


def _held_rows(trial: Trial) -> dict[EdgeKey, float]:
    """Return how many rows are let go at once over each edge whose sender holds rows back.

    Its slices are larger than what follows from the slices that its instances get: by more than
    `_HELD_BACK`, since these differ among themselves.
    """
    planned, sent = trial.plan, sent_by_edge(trial.loads)
    found: dict[EdgeKey, float] = {}
    for sender in planned.stages:
        taken = _rows_taken(trial, sender)
        got = 0.0
        for edge in _feeds(planned, sender):
            load = sent.get(edge.id, EdgeLoad())
            divided = 1 if isinstance(edge.grouping, All) else len(sender.workers)
            got = max(got, load.rows / load.slices / divided if load.slices else 0.0)
        for edge in planned.out_edges(sender.id):
            load = sent.get(edge.id, EdgeLoad())
            follow = got * load.rows / taken if taken else 0.0
            if follow and load.rows / load.slices > _HELD_BACK * follow:
                found[edge_key(edge)] = load.rows / load.slices * sender.parallelism
    return found


def _gathers(trial: Trial) -> dict[EdgeKey, float]:
    """Return how many times the rows are sent together that follow from a message, by edge.

    More than once where several messages come within a slice's time; less where one leads to
    several slices.
    """
    planned, sent = trial.plan, sent_by_edge(trial.loads)
    found: dict[EdgeKey, float] = {}
    for sender in planned.stages:
        taken = _rows_taken(trial, sender)
        loads = [sent.get(edge.id, EdgeLoad()) for edge in _feeds(planned, sender)]
        sizes = [load.rows / load.messages for load in loads if load.messages]
        for edge in planned.out_edges(sender.id):
            load = sent.get(edge.id, EdgeLoad())
            if sizes and taken and load.slices and load.rows:
                follow = sum(sizes) / len(sizes) * load.rows / taken
                found[edge_key(edge)] = load.rows / load.slices / follow
    return found


def _spread(trial: Trial) -> dict[EdgeKey, float]:
    """Return to which part of the target's other workers a slice goes, by edge."""
    planned, sent = trial.plan, sent_by_edge(trial.loads)
    found: dict[EdgeKey, float] = {}
    for edge in planned.edges:
        load = sent.get(edge.id, EdgeLoad())
        workers = len(planned.stages[edge.target_stage].workers)
        if 1 < workers <= load.rows / max(1, load.slices):  # with fewer rows it would be chance
            others = load.messages / load.slices - 1
            found[edge_key(edge)] = min(1.0, others / (workers - 1))
    return found


def _rows_at_once(trial: Trial) -> dict[str, float]:
    """Return how many rows each source reads together: those of its largest slices."""
    sent = sent_by_edge(trial.loads)
    found: dict[str, float] = {}
    for stage in trial.plan.stages:
        if trial.plan.operator(stage.head).inputs:
            continue
        sizes = [1.0]
        for edge in trial.plan.out_edges(stage.id):
            load = sent.get(edge.id, EdgeLoad())
            target = trial.plan.stages[edge.target_stage]
            rings = 1 if isinstance(edge.grouping, All) else len(target.workers)
            if load.messages:
                sizes.append(load.rows * rings / load.messages)
        found[stage.head] = max(sizes)
    return found
