"""One sample of a running job as JSON: all details of this moment, and a short line for charts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from ..configs.errors import UserFunctionError, WhaleError
from ..metrics.counters import InstanceMetrics, LatencyHistogram, MemberCounters
from ..metrics.job_metrics import JobMetrics
from ..metrics.operator_metrics import OperatorMetrics
from ..metrics.relay_metrics import RelayMetrics
from ..multicast.tree_state import SwitchReport, TreeLoad
from ..multicast.trees import Tree
from ..optimizer.decisions import DecisionLog, step_as_plain
from ..state.watermarks import WATERMARK_IDLE, WATERMARK_NONE
from .describing import FORMAT

__all__ = ["JobEnd", "JobView", "Sampler", "describe_end"]

_SWITCHES_SHOWN = 64
_DECISIONS_SHOWN = 256
_SILENT_INTERVALS = 5


def empty_sample(wall_s: float) -> dict[str, Any]:
    """Return what stands for a sample of a job that has not written one yet, since it starts.

    Args:
        wall_s: when the job began, by the wall's clock.
    """
    several = ("operators", "instances", "members", "rings", "relays", "trees", "switches")
    return {
        "format": FORMAT,
        "at_s": 0.0,
        "wall_s": wall_s,
        "state": "starting",
        "attempt": 0,
        "cpu_s": 0.0,
        **{name: [] for name in several},
        "throttled": {},
        "checkpoints": None,
        "decisions": _decisions(None),
        "end": None,
    }


@dataclass(frozen=True)
class JobView:
    """What a job's supervisor knows at one moment.

    Attributes:
        state: as `Job.state`.
        metrics: the newest counters, put together.
        newest: the newest counters of each member.
        previous: the one before.
        trees: the multicast trees in force that have changed or may change, by stream.
        loads: what decides on their out-degrees, by stream.
    """

    state: str
    metrics: JobMetrics
    newest: Mapping[int, MemberCounters]
    previous: Mapping[int, MemberCounters]
    trees: Mapping[int, Tree]
    loads: Mapping[int, TreeLoad]


class JobEnd(Protocol):
    """How a job ended: the part of its outcome that is kept."""

    @property
    def state(self) -> str:
        """As `Job.state`."""

    @property
    def seconds(self) -> float:
        """From the first row to the last."""

    @property
    def restarts(self) -> int:
        """How often it was restarted."""

    @property
    def error(self) -> WhaleError | None:
        """Why it failed."""

    @property
    def checkpoint(self) -> str:
        """The newest checkpoint; "" if there is none."""


def describe_end(end: JobEnd) -> dict[str, Any]:
    """Return it as plain data; of an error in a user's function, traceback and row apart."""
    error = end.error
    of_user = error if isinstance(error, UserFunctionError) else None
    return {
        "state": end.state,
        "seconds": end.seconds,
        "restarts": end.restarts,
        "checkpoint": end.checkpoint,
        "error": "" if error is None else str(error),
        "kind": "" if error is None else type(error).__name__,
        "operator": "" if of_user is None else of_user.operator_id,
        "instance": None if of_user is None else of_user.instance,
        "traceback": "" if of_user is None else of_user.user_traceback,
        "row": "" if of_user is None else of_user.row_preview,
    }


class Sampler:
    """Makes samples of one job, one after the other."""

    def __init__(self, operator_ids: Iterable[str], workers: int, interval_s: float) -> None:
        """Take how often, at most, members tell their counters and samples are made."""
        self._workers = workers
        self._silence_s = _SILENT_INTERVALS * interval_s
        # By member: when its newest counters were taken, and since when they are the newest.
        self._heard: dict[int, tuple[int | None, float]] = {}
        self._places = {operator_id: place for place, operator_id in enumerate(operator_ids)}
        self._latencies: dict[str, LatencyHistogram] = {}
        self._attempt = 0

    def detail(self, view: JobView, at_s: float, wall_s: float) -> dict[str, Any]:
        """Return all that is known now; `at_s` is the time since the job began."""
        metrics = view.metrics
        checkpoints = metrics.checkpoints
        return {
            "format": FORMAT,
            "at_s": round(at_s, 3),
            "wall_s": wall_s,
            "state": view.state,
            "attempt": metrics.attempt,
            "cpu_s": metrics.cpu_s,
            "operators": [_operator(one, view) for one in metrics.operators],
            "instances": [
                one
                for member, worker in view.newest.items()
                for one in self._instances(worker, view.previous.get(member))
            ],
            "members": self._members(view, at_s),
            "rings": [
                _ring(ring, worker, view.previous.get(member))
                for member, worker in view.newest.items()
                for ring in worker.rings
            ],
            "relays": [_relay(one) for one in metrics.relays],
            "trees": [_tree(n, tree, view.loads.get(n)) for n, tree in view.trees.items()],
            "switches": [_switch(one) for one in metrics.switches[-_SWITCHES_SHOWN:]],
            "throttled": {str(n): rate for n, rate in metrics.throttled.items()},
            "checkpoints": None if checkpoints is None else asdict(checkpoints),
            "decisions": _decisions(metrics.decisions),
            "end": None,
        }

    def line(self, view: JobView, at_s: float) -> dict[str, Any]:
        """Return what charts show; latencies are those since the previous line.

        Of each operator, in the order of `job.json`: rows per s, busy, back-pressured, lag in ms,
        median and 99th percentile of the latency in ms; None without counters.
        """
        if view.metrics.attempt != self._attempt:
            self._attempt = view.metrics.attempt
            self._latencies.clear()
        operators: list[list[float | None] | None] = [None] * len(self._places)
        for one in view.metrics.operators:
            latency = self._latency(one.operator_id, view)
            operators[self._places[one.operator_id]] = [
                _short(value)
                for value in (
                    one.rate_per_s,
                    one.busy,
                    one.back_pressured,
                    one.lag_ms,
                    latency.quantile_ms(0.5),
                    latency.quantile_ms(0.99),
                )
            ]
        cores = sum(_member(w, view.previous.get(n))["cores"] for n, w in view.newest.items())
        return {
            "s": round(at_s, 2),
            "attempt": view.metrics.attempt,
            "cores": _short(cores),
            "operators": operators,
        }

    def _members(self, view: JobView, at_s: float) -> list[dict[str, Any]]:
        """Return workers and relays, also workers of a running job that have told nothing yet."""
        told = {n: _member(one, view.previous.get(n)) for n, one in view.newest.items()}
        if view.state == "running":
            for n in range(self._workers):
                told.setdefault(n, {"member": n, "host": "", "cores": 0.0})
        return [
            {**one, "silent_s": self._silent_s(n, view.newest.get(n), at_s)}
            for n, one in told.items()
        ]

    def _silent_s(self, member: int, newest: MemberCounters | None, at_s: float) -> float:
        """Return for how long a member has not moved; 0 while that is usual.

        It has told no counters since then, or its loop is in one turn.
        """
        newest_ns, turn_ns = (None, 0) if newest is None else (newest.at_ns, newest.turn_ns)
        heard = self._heard.get(member)
        if heard is None or heard[0] != newest_ns:
            self._heard[member] = heard = newest_ns, at_s
        silent_s = at_s - heard[1] + turn_ns / 1e9
        return round(silent_s, 1) if silent_s > self._silence_s else 0.0

    def _latency(self, operator_id: str, view: JobView) -> LatencyHistogram:
        """Return the latencies of an operator since the last call."""
        total = LatencyHistogram()
        for worker in view.newest.values():
            for one in worker.instances:
                if one.operator_id == operator_id and one.latency is not None:
                    total.merge(one.latency)
        before = self._latencies.get(operator_id)
        self._latencies[operator_id] = total
        return total if before is None else total.since(before)

    def _instances(
        self, worker: MemberCounters, before: MemberCounters | None
    ) -> Iterator[list[float | None]]:
        """Yield operator, instance, worker, rows per s, busy, back-pressured, buffered rows."""
        earlier: dict[tuple[str, int], InstanceMetrics] = {}
        elapsed_ns = 0
        if before is not None:
            earlier = {(one.operator_id, one.instance): one for one in before.instances}
            elapsed_ns = worker.at_ns - before.at_ns
        for now in worker.instances:
            last = earlier.get((now.operator_id, now.instance))
            rates: tuple[float | None, ...] = (0, 0, 0)
            if last is not None and elapsed_ns > 0:
                rates = (
                    _short((now.rows_in - last.rows_in) / elapsed_ns * 1e9),
                    _short(min(1.0, (now.busy_ns - last.busy_ns) / elapsed_ns)),
                    _short(min(1.0, (now.blocked_ns - last.blocked_ns) / elapsed_ns)),
                )
            place = self._places[now.operator_id]
            yield [place, now.instance, now.worker, *rates, now.buffered_rows]


def _decisions(log: DecisionLog | None) -> dict[str, Any]:
    """Return the last decisions, and how many there were before them."""
    steps = () if log is None else log.steps
    shown = steps[-_DECISIONS_SHOWN:]
    earlier = len(steps) - len(shown) + (0 if log is None else log.left_out)
    return {"earlier": earlier, "steps": [_finite(step_as_plain(one)) for one in shown]}


def _finite(step: dict[str, Any]) -> dict[str, Any]:
    """Return a decision without infinite numbers, which JSON does not know."""
    return {**step, "numbers": {name: _short(value) for name, value in step["numbers"].items()}}


def _operator(one: OperatorMetrics, view: JobView) -> dict[str, Any]:
    marks = [
        instance.watermark_ns
        for worker in view.newest.values()
        for instance in worker.instances
        if instance.operator_id == one.operator_id
    ]
    mark_ns = min(marks, default=WATERMARK_NONE)
    shown = asdict(one)
    shown["watermark_s"] = mark_ns / 1e9 if WATERMARK_NONE < mark_ns < WATERMARK_IDLE else None
    return shown


def _member(now: MemberCounters, before: MemberCounters | None) -> dict[str, Any]:
    """Return a worker or relay, and how many cores its process keeps busy."""
    cores = 0.0
    if before is not None and now.at_ns > before.at_ns:
        cores = max(0, now.cpu_ns - before.cpu_ns) / (now.at_ns - before.at_ns)
    return {"member": now.worker, "host": now.host, "cores": _short(cores)}


def _ring(now: Any, worker: MemberCounters, before: MemberCounters | None) -> dict[str, Any]:
    earlier = None
    if before is not None:
        earlier = next((one for one in before.rings if one.ring == now.ring), None)
    shown = {"id": now.ring, "fill": _short(now.fill), "bytes_per_s": 0.0, "messages_per_s": 0.0}
    if before is not None and earlier is not None and worker.at_ns > before.at_ns:
        elapsed_s = (worker.at_ns - before.at_ns) / 1e9
        shown["bytes_per_s"] = _short((now.nbytes - earlier.nbytes) / elapsed_s)
        shown["messages_per_s"] = _short((now.messages - earlier.messages) / elapsed_s)
    return shown


def _relay(one: RelayMetrics) -> dict[str, Any]:
    return {
        "host": one.host,
        "sent_bytes_per_s": _short(one.sent_bytes_per_s),
        "waits_for": list(one.waits_for),
        "refused": dict(one.refused),
        "links": [
            {
                "peer": link.host,
                "up": link.up,
                "way": link.way,
                "sent_bytes": link.bytes_sent,
                "received_bytes": link.bytes_received,
                "waited": link.back_pressured,
                "rtt_ms": link.rtt_ns / 1e6,
                "last_failure": link.last_failure,
                "without_verbs": link.without_verbs,
            }
            for link in one.links
        ],
    }


def _tree(stream: int, tree: Tree, load: TreeLoad | None) -> dict[str, Any]:
    return {
        "stream": stream,
        **_shape(tree),
        "degree": tree.degree,
        "load": None if load is None else asdict(load),
    }


def _switch(one: SwitchReport) -> dict[str, Any]:
    return {
        "stream": one.stream,
        "why": one.why,
        "before": _shape(one.before),
        "after": _shape(one.after),
        "degree_before": one.degree_before,
        "degree_after": one.degree_after,
        "moves": one.moves,
        "epoch": one.epoch,
        "decided_ns": one.decided_ns,
        "committed_ns": one.committed_ns,
        "ended_ns": one.ended_ns,
        "aborted": one.aborted,
        "load": None if one.load is None else asdict(one.load),
    }


def _shape(tree: Tree) -> dict[str, Any]:
    return {"root": tree.root, "edges": tree.edges}


def _short(value: float | None) -> float | None:
    """Return a number with four digits, which JSON knows; None for what is none."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.4g}")
