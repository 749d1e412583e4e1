"""Calibrates a topology, optimizes it, predicts what that gains, and measures whether it does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

from ..configs.units import NS_PER_MS
from ..optimizer.algorithm import Optimization, optimize
from ..optimizer.dataflow import OptimizerLimits, SendingCosts
from ..plan.logical import LogicalPlan, OperatorKind
from ..plan.planner import plan, worker_count
from .applying import in_batches_of, with_choices
from .calibration import CALIBRATION_BATCHES, ROUNDS, MeasuredTopology, batches_told, calibrate
from .trial_sources import is_measured
from .trials import Trial, TrialLength, run_trial

if TYPE_CHECKING:
    from ..configs.settings import Settings
    from ..operators.sinks.base import Sink
    from ..operators.sources.base import Source
    from ..optimizer.prediction import Prediction

__all__ = ["VARIANTS", "CheckedPrediction", "Tuned", "compare", "readable", "tune"]

SINGLE_ROWS, AS_IT_IS, OPTIMIZED = "single rows", "as it is", "optimized"
VARIANTS = (SINGLE_ROWS, AS_IT_IS, OPTIMIZED)
"""What is compared: messages of one row each, the user's own choices, and the optimizer's."""

_LATENCY_LENGTH = TrialLength(warm_up_s=0.2, measured_s=0.6, wall_s=4.0)
_LONG_ENOUGH = 0.5

Report = Callable[[str], None]
"""Told what happens next, in a few words."""


@dataclass(frozen=True)
class Tuned:
    """A topology, what was measured of it, and what the optimizer made of that.

    Attributes:
        given: the topology as it was.
        logical: the same with the degrees of parallelism and batches that were decided.
        calibration: what its stages cost.
        optimization: the decisions.
        sending: what messages cost.
        settings: of the trials and of the job.
        workers: how many processes.
        cores: that were counted on.
        not_measured: sinks that had to do nothing in the trials.
    """

    given: LogicalPlan
    logical: LogicalPlan
    calibration: MeasuredTopology
    optimization: Optimization
    sending: SendingCosts
    settings: Settings
    workers: int
    cores: int
    not_measured: tuple[str, ...]

    def variant(self, name: str) -> LogicalPlan:
        """Return one of `VARIANTS`."""
        if name == OPTIMIZED:
            return self.logical
        return in_batches_of(self.given, 1) if name == SINGLE_ROWS else self.given

    def predict(self, name: str, rate_per_s: float | None = None) -> Prediction:
        """Return what a variant is predicted to do, its latency at a rate (of all sources)."""
        planned = plan(self.variant(name), self.settings, self.workers)
        return self.calibration.predict(planned, self.settings, self.cores, rate_per_s)

    def predicted_by_rounds(self, name: str) -> tuple[float, ...]:
        """Return the throughput of a variant as each round of trials by itself predicts it."""
        planned = plan(self.variant(name), self.settings, self.workers)
        return self.calibration.predicted_by_rounds(planned, self.settings, self.cores)

    @property
    def cut_short(self) -> dict[str, float]:
        """Of the trials that were less than half as long as they were to be: how long they were."""
        shares = {rows: trial.share for rows, trial in self.calibration.trials.items()}
        return {batches_told(rows): of for rows, of in shares.items() if of < _LONG_ENOUGH}

    def measured(self, trial: Trial) -> float:
        """Return the throughput that a trial's processor time allows, rows per second."""
        return self.calibration.rows_per_cpu_s(trial, self.cores)


@dataclass(frozen=True)
class CheckedPrediction:
    """A prediction and what came of it.

    Attributes:
        variant: one of `VARIANTS`.
        predicted_per_s: rows that the sources can read in a second.
        measured_per_s: the same by the processor time that was measured, so as if nothing else
            took any.
        wall_per_s: the same by the wall's clock, with all else that ran on the machine.
        predicted_each: what each round of the trials by itself predicts.
        measured_each: of each time that it was measured; `measured_per_s` is the middle one.
        rate_per_s: the rate at which latency was measured; 0 if it was not.
        predicted_ms: latency from source to sink at that rate; None without it.
        measured_ms: the median of the rows; None without it, or if no row came to a sink.
    """

    variant: str
    predicted_per_s: float
    measured_per_s: float
    wall_per_s: float
    predicted_each: tuple[float, ...] = ()
    measured_each: tuple[float, ...] = ()
    rate_per_s: float = 0.0
    predicted_ms: float | None = None
    measured_ms: float | None = None

    @property
    def error(self) -> float:
        """By what part of the measured throughput the predicted one differs."""
        return self.predicted_per_s / self.measured_per_s - 1 if self.measured_per_s else 0.0

    @property
    def predicted_spread(self) -> float:
        """How far the rounds' predictions lie apart, to each side, as a part of the prediction."""
        return _spread(self.predicted_each, self.predicted_per_s)

    @property
    def measured_spread(self) -> float:
        """The same of what was measured."""
        return _spread(self.measured_each, self.measured_per_s)


@contextmanager
def readable(logical: LogicalPlan, settings: Settings) -> Iterator[LogicalPlan]:
    """Make the sources of a topology readable for workers as long as trials run."""
    from ..api.job_requests import prepare_operators

    prepared = prepare_operators(logical, settings, cluster=False)
    try:
        yield prepared
    finally:
        for node in prepared.of_kind(OperatorKind.SOURCE):
            cast("Source", node.payload).release()


def tune(
    logical: LogicalPlan,
    settings: Settings,
    workers: int | None = None,
    *,
    cores: int | None = None,
    hosts: int | None = None,
    rates: Mapping[str, float] | None = None,
    batch_bytes_max: int | None = None,
    length: TrialLength | None = None,
    batches: Sequence[int | None] = CALIBRATION_BATCHES,
    rounds: int = ROUNDS,
    report: Report = lambda _text: None,
) -> Tuned:
    """Measure a topology in trials, and optimize it.

    Args:
        logical: the topology, see `readable`.
        settings: of the job.
        workers: how many processes; as for `submit`.
        cores: of all hosts; None: as many as there are workers.
        hosts: among which the cores are divided; None: those of the job.
        rates: rows per second that sources are to read, by their ids; others: all that is possible.
        batch_bytes_max: the largest batch; None: the largest slice, `transport.mms_bytes`.
        length: of each trial.
        batches: of the trials.
        rounds: how often each trial is repeated.
        report: told of each trial.

    Raises:
        UsageError: no row has been read in time, or a number makes no sense.
        WhaleError: what the topology itself raises.
    """
    count = worker_count(settings, workers)
    cores = cores or count
    hosts = hosts or max(1, settings.runtime.hosts)
    limits = OptimizerLimits(cores, hosts, batch_bytes_max or settings.transport.mms_bytes, cores)
    calibration = calibrate(
        logical,
        settings,
        count,
        length=length,
        batches=batches,
        rounds=rounds,
        on_trial=lambda what: report(f"calibrating: {what}"),
    )
    dataflow, sending = calibration.dataflow(cores, rates or {})
    found = optimize(dataflow, sending, limits)
    changed = with_choices(logical, calibration.plan, found.choices)
    not_measured = tuple(
        node.id
        for node in logical.of_kind(OperatorKind.SINK)
        if not is_measured(cast("Sink", node.payload))
    )
    return Tuned(
        logical, changed, calibration, found, sending, settings, count, cores, not_measured
    )


def compare(
    tuned: Tuned,
    variants: tuple[str, ...] = VARIANTS,
    *,
    latency: bool = True,
    length: TrialLength | None = None,
    rounds: int = ROUNDS,
    report: Report = lambda _text: None,
) -> Iterator[CheckedPrediction]:
    """Run each variant, in turns, and yield its prediction beside what was measured.

    Every variant gets trials of its own: those of the calibration do not count. Latencies are
    measured once, at half of the throughput that the variant had by the wall's clock.
    """
    trials: dict[str, list[Trial]] = {name: [] for name in variants}
    for number in range(1, rounds + 1):
        for name, found in trials.items():
            report(f"measuring: {name}" + (f" ({number} of {rounds})" if rounds > 1 else ""))
            logical = tuned.variant(name)
            found.append(run_trial(logical, tuned.settings, tuned.workers, length=length))
    for name, found in trials.items():
        yield _checked(tuned, name, found, report if latency else None)


def _checked(
    tuned: Tuned, name: str, trials: Sequence[Trial], report: Report | None
) -> CheckedPrediction:
    """Return a variant's prediction beside its trials; without `report` there is no latency."""
    by_rate = sorted(trials, key=tuned.measured)
    middle = by_rate[(len(by_rate) - 1) // 2]
    checked = CheckedPrediction(
        name,
        tuned.predict(name).rows_per_s,
        tuned.measured(middle),
        middle.rows_per_s,
        tuned.predicted_by_rounds(name),
        tuple(map(tuned.measured, trials)),
    )
    if report is None or not middle.rows_per_s:
        return checked
    rate = middle.rows_per_s / 2
    report(f"measuring: {name}, latency at {rate:,.0f} rows/s")
    logical = tuned.variant(name)
    paced = run_trial(
        logical, tuned.settings, tuned.workers, rate_per_s=rate, length=_LATENCY_LENGTH
    )
    then = tuned.predict(name, rate)
    return replace(
        checked,
        rate_per_s=rate,
        predicted_ms=then.latency_ns / NS_PER_MS,
        measured_ms=paced.latency_ms,
    )


def _spread(values: Sequence[float], middle: float) -> float:
    return (max(values) - min(values)) / 2 / middle if values and middle else 0.0
