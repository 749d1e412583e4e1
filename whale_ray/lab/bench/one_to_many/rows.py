"""The measurements as rows of a report, and the aims."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..report import Aim, BenchRow
from .encoding import encoding_ns, frame_bytes, pickling_ns
from .measuring import ModeResult, by_name
from .modes import INSTANCES_TCP, PICKLED, RING_BYTES, SLICE_ROWS, Mode
from .traffic import reduction, stream_of

__all__ = ["aims", "measured_rows"]

_PER = 10_000
"""Bytes are reported per so many tuples, as in the paper."""

TREES = ("non-blocking", "star", "binomial", "chain")
"""The modes of worker-oriented addressing over tcp."""


def measured_rows(found: Sequence[ModeResult]) -> Iterator[BenchRow]:
    """Return the rows of all modes and sizes; ratios against the instance-oriented mode."""
    for one in found:
        others = by_name(found, one.shape.instances)
        yield _throughput(one, others.get(_baseline(one.mode)))
        yield _serialization(one)
        if one.mode.transport == "tcp" and not one.mode.pickled:
            yield _bytes(one)
        yield from _latencies(one, others.get(_baseline(one.mode)))


def _parameters(found: ModeResult) -> dict[str, object]:
    return {
        "instances": found.shape.instances,
        "hosts": found.shape.hosts if found.mode.transport == "tcp" else 1,
        "mode": found.mode.name,
    }


def _baseline(mode: Mode) -> str:
    return INSTANCES_TCP if mode.transport == "tcp" else "instances, one host"


def _throughput(found: ModeResult, baseline: ModeResult | None) -> BenchRow:
    measured = found.unpaced
    by_role = measured.spent.by_role
    compared = baseline is not None and baseline is not found
    also = {f"{role} ns/tuple": measured.per_row_ns(ns) for role, ns in by_role.items()}
    also["all ns/tuple"] = measured.per_row_ns(measured.spent.total_ns)
    also["touch ns/tuple"] = measured.per_row_ns(measured.reading_ns)
    if compared and baseline is not None:
        also["x less source CPU"] = _source_ns(baseline) / max(_source_ns(found), 1e-9)
    return BenchRow(
        "source tuples",
        _parameters(found),
        measured.rows_per_s,
        "tuples/s",
        ratio=measured.rows_per_s / baseline.unpaced.rows_per_s
        if compared and baseline is not None
        else None,
        against=baseline.mode.name if compared and baseline is not None else "",
        cores=measured.spent.total_ns / measured.seconds / 1e9,
        also=also,
    )


def _source_ns(found: ModeResult) -> float:
    """Return the processor time of the source's host per tuple, ns."""
    return found.unpaced.per_row_ns(found.unpaced.spent.source_ns)


def _serialization(found: ModeResult) -> BenchRow:
    """Return the share of the source's host's time that serialization takes.

    Serialization is measured separately, so that the data path need not be timed.
    """
    once_ns = pickling_ns() if found.mode.pickled else encoding_ns(SLICE_ROWS)
    times = 1 if found.mode.addressing == "worker-oriented" else found.shape.instances
    share = once_ns * times / max(_source_ns(found), 1e-9)
    return BenchRow(
        "serialization",
        _parameters(found),
        share,
        "of the source's host's CPU",
        also={"ns/tuple": once_ns * times, "times a tuple": float(times)},
    )


def _bytes(found: ModeResult) -> BenchRow:
    measured = found.unpaced
    value = measured.sent_bytes / max(measured.rows, 1) * _PER
    copies = measured.copies
    if found.mode.addressing == "instance-oriented":
        copies = found.shape.instances
    computed = formula_bytes(copies)
    at_most = " at most" if found.mode.route == "non-blocking" else ""  # at its greatest width
    return BenchRow(
        "bytes from the source's host",
        _parameters(found),
        value / 1e6,
        f"MB per {_PER:,} tuples",
        ratio=value / computed,
        against=f"formula, {copies} copies{at_most}",
        also={"copies": float(copies), "formula MB": computed / 1e6},
    )


def formula_bytes(copies: int) -> float:
    """Return the bytes that the source's host must send for 10,000 tuples in `copies` copies."""
    slices = 64
    stream = stream_of([frame_bytes(SLICE_ROWS)] * slices, RING_BYTES)
    return stream.leaves(copies) / (SLICE_ROWS * slices) * _PER


def _latencies(found: ModeResult, baseline: ModeResult | None) -> Iterator[BenchRow]:
    if found.latencies is None:
        return
    theirs = None if baseline is None or baseline is found else baseline.latencies
    offered = {**_parameters(found), "tuples/s": round(found.rate)}
    for name in ("processing", "multicast"):
        ours = getattr(found.latencies, name)
        yield BenchRow(
            f"{name} latency",
            offered,
            ours.p50_ms,
            "ms, p50",
            ratio=None if theirs is None else ours.p50_ms / getattr(theirs, name).p50_ms,
            against="" if baseline is None or theirs is None else baseline.mode.name,
            also={"p99 ms": ours.p99_ms, "mean ms": ours.mean_ms},
        )


def aims(found: Sequence[ModeResult], instances: int) -> Iterator[BenchRow]:
    """Return the aims at `instances` instances for which there are measurements."""
    here = by_name(found, instances)
    trees = [here[name] for name in TREES if name in here]
    if not trees:
        return
    best = max(trees, key=lambda one: one.unpaced.rows_per_s)
    lightest = here.get("non-blocking", best)
    if (tcp := here.get(INSTANCES_TCP)) is not None:
        yield from _against_instances(best, lightest, tcp, 60.0)
        ours = lightest.unpaced.sent_bytes / max(lightest.unpaced.rows, 1)
        theirs = tcp.unpaced.sent_bytes / max(tcp.unpaced.rows, 1)
        yield _aim("bytes", lightest, reduction(ours, theirs), "", Aim("value", "at most", -0.98))
        if lightest.latencies is not None and tcp.latencies is not None:
            change = reduction(
                lightest.latencies.processing.mean_ms, tcp.latencies.processing.mean_ms
            )
            aim = Aim("value", "at most", -0.97)
            yield _aim("mean processing latency", lightest, change, "", aim)
    shared, apart = here.get("one host"), here.get("instances, one host")
    if shared is not None and apart is not None:
        yield from _against_instances(shared, shared, apart, 16.0)
    if (pickled := here.get(PICKLED)) is not None:
        yield from _against_instances(best, lightest, pickled, 200.0)
    yield from _level(found)


def _against_instances(
    best: ModeResult, lightest: ModeResult, other: ModeResult, limit: float
) -> Iterator[BenchRow]:
    against = other.mode.name
    aim = Aim("value", "at least", limit)
    ratio = best.unpaced.rows_per_s / other.unpaced.rows_per_s
    yield _aim("tuples/s", best, ratio, against, aim)
    ratio = _source_ns(other) / max(_source_ns(lightest), 1e-9)
    yield _aim("source's host's CPU", lightest, ratio, against, aim)


def _level(found: Sequence[ModeResult]) -> Iterator[BenchRow]:
    """Compare the source's CPU per tuple at the largest size with that at the smallest."""
    for name in TREES:
        sizes = sorted(
            (one for one in found if one.mode.name == name), key=lambda one: one.shape.instances
        )
        if len(sizes) < 2:
            continue
        small, large = sizes[0], sizes[-1]
        ratio = _source_ns(large) / max(_source_ns(small), 1e-9)
        against = f"{small.shape.instances} instances"
        yield _aim("source's CPU", large, ratio, against, Aim("value", "at most", 1.3))


def _aim(what: str, found: ModeResult, value: float, against: str, aim: Aim) -> BenchRow:
    against = against or INSTANCES_TCP
    return BenchRow(f"aim: {what}", _parameters(found), value, f"x of {against}", aim=aim)
