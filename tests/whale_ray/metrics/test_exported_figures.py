"""Figures as they are exported: names, counters over attempts, bounded labels, histograms."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.whale_ray.metrics.full_job import full_metrics, full_status
from whale_ray.control.job_states import ALIVE
from whale_ray.metrics.counters import InstanceMetrics, LatencyHistogram, MemberCounters
from whale_ray.metrics.export.catalogue import CATALOGUE
from whale_ray.metrics.export.metric import LATENCY_BOUNDS_S, JobStatus, Kind, labels_of
from whale_ray.metrics.export.reader import (
    OTHER,
    VALUES_MAX,
    Buckets,
    JobReader,
    Sample,
)
from whale_ray.metrics.job_metrics import summarize

METRICS = [(group, metric) for group in CATALOGUE for metric in group.metrics]
ROWS_IN = "whale_ray_operator_rows_in_total"


def reader_of(status: Callable[[], JobStatus], *, per_instance: bool = False) -> JobReader:
    return JobReader("total-1", "total", status, per_instance=per_instance)


def found(reader: JobReader, name: str) -> dict[tuple[str, ...], Sample]:
    """Return the samples of a metric, by its labels behind job and topology."""
    (family,) = (one for one in reader.read() if one.metric.name == name)
    assert {labels[:2] for labels in family.samples} == {("total-1", "total")}
    return {labels[2:]: sample for labels, sample in family.samples.items()}


def status_of(*members: MemberCounters) -> JobStatus:
    names = dict.fromkeys(one.operator_id for each in members for one in each.instances)
    return JobStatus("running", ALIVE, summarize(names, members))


# --- the catalogue ---


def test_names_are_unique_and_follow_the_conventions() -> None:
    names = [metric.name for _, metric in METRICS]
    assert len(set(names)) == len(names)
    for _, metric in METRICS:
        assert re.fullmatch(r"whale_ray(_[a-z0-9]+)+", metric.name)
        assert metric.name.endswith("_total") == (metric.kind is Kind.COUNTER), metric.name
        if metric.unit in ("seconds", "bytes", "ratio"):
            assert metric.name.removesuffix("_total").endswith(f"_{metric.unit}"), metric.name
        assert metric.meaning.endswith("."), metric.name


def test_no_label_is_one_that_prometheus_gives_its_targets() -> None:
    labels = {name for one in METRICS for name in labels_of(*one, per_instance=True)}
    assert labels & {"job", "instance", "le", "quantile"} == set()


def test_a_job_with_everything_has_a_series_of_every_metric() -> None:
    families = {family.metric.name for family in reader_of(full_status).read()}
    assert families == {metric.name for _, metric in METRICS}


def test_a_job_that_has_not_begun_has_only_a_state() -> None:
    reader = reader_of(lambda: JobStatus("starting", ALIVE, summarize((), ())))
    assert [family.metric.name for family in reader.read()] == [
        "whale_ray_build_info",
        "whale_ray_job_state",
        "whale_ray_job_attempt",
    ]
    states = found(reader, "whale_ray_job_state")
    assert {labels[0] for labels, value in states.items() if value} == {"starting"}
    assert len(states) == len(ALIVE)


# --- series ---


def test_instances_of_a_worker_are_one_series_unless_they_are_asked_for() -> None:
    rows = found(reader_of(full_status), ROWS_IN)
    apart = found(reader_of(full_status, per_instance=True), ROWS_IN)
    assert rows["total", "0"] == apart["total", "0", "0"] + apart["total", "0", "1"] == 5000
    assert len(apart) == 6 and len(rows) == 4
    mark = found(reader_of(full_status), "whale_ray_operator_watermark_timestamp_seconds")
    assert mark["total", "0"] == 9  # the least of two


def test_counters_equal_those_of_the_job() -> None:
    metrics = full_metrics()
    rows = found(reader_of(full_status), ROWS_IN)
    for operator in metrics.operators:
        name = operator.operator_id
        assert sum(value for labels, value in rows.items() if labels[0] == name) == operator.rows_in


def test_a_label_has_a_bounded_number_of_values() -> None:
    reasons = {f"reason {number}": 1 for number in range(VALUES_MAX + 30)}
    instance = InstanceMetrics("rows", 0, 0, rows_dropped=reasons)
    reader = reader_of(lambda: status_of(MemberCounters(0, 1, 0, (instance,))))
    for _ in range(2):
        dropped = found(reader, "whale_ray_operator_dropped_rows_total")
        assert len(dropped) == VALUES_MAX + 1
        assert dropped["rows", "0", OTHER] == 30


# --- counters over attempts ---


def rows_of(attempt: int, rows: int, restored: int = 0) -> JobStatus:
    instance = InstanceMetrics("rows", 0, 0, rows_in=rows, restored={"rows_in": restored})
    return status_of(MemberCounters(0, 1, 0, (instance,), attempt=attempt))


@pytest.mark.parametrize(
    ("readings", "expected"),
    [
        ([rows_of(0, 100), rows_of(0, 150)], [100, 150]),
        ([rows_of(0, 100), rows_of(1, 0), rows_of(1, 30)], [100, 100, 130]),
        ([rows_of(0, 100), rows_of(1, 400)], [100, 500]),  # farther than before when next seen
        ([rows_of(0, 100), rows_of(1, 95, restored=80)], [100, 115]),
        ([rows_of(0, 1080, restored=1000)], [80]),  # what an earlier job did is not this one's
        ([rows_of(0, 10), rows_of(1, 10), rows_of(2, 10), rows_of(2, 12)], [10, 20, 30, 32]),
    ],
)
def test_a_counter_counts_what_was_done_in_all_attempts(
    readings: list[JobStatus], expected: list[int]
) -> None:
    ahead = iter(readings)
    reader = reader_of(lambda: next(ahead))
    assert [found(reader, ROWS_IN)["rows", "0"] for _ in readings] == expected


def test_the_time_of_a_process_goes_on_over_attempts_and_begins_anew_with_another() -> None:
    times = iter([(0, 5), (1, 6), (1, 1)])  # the worker survived the first restart

    def status() -> JobStatus:
        attempt, seconds = next(times)
        return status_of(MemberCounters(0, 1, seconds * 10**9, attempt=attempt))

    reader = reader_of(status)
    name = "whale_ray_worker_cpu_seconds_total"
    assert [found(reader, name)["0",] for _ in range(3)] == [5, 6, 7]


# --- histograms ---


def sink_of(latency: LatencyHistogram, attempt: int = 0) -> JobStatus:
    instance = InstanceMetrics("out", 0, 0, latency=latency)
    return status_of(MemberCounters(0, 1, 0, (instance,), attempt=attempt))


@given(st.lists(st.tuples(st.integers(1, 10**11), st.integers(1, 50)), max_size=50))
def test_buckets_count_the_rows_up_to_their_bounds(latencies: list[tuple[int, int]]) -> None:
    histogram = LatencyHistogram()
    for latency_ns, rows in latencies:
        histogram.add(latency_ns, rows)
    buckets = found(reader_of(lambda: sink_of(histogram)), "whale_ray_sink_latency_seconds")
    sample = buckets["out", "0"]
    assert isinstance(sample, Buckets)
    assert sample.count == sum(rows for _, rows in latencies)
    assert sample.sum_s == pytest.approx(sum(ns * rows for ns, rows in latencies) / 1e9)
    for bound_s, count in zip(LATENCY_BOUNDS_S, sample.up_to, strict=True):
        surely = sum(rows for ns, rows in latencies if ns <= bound_s * 1e9 / 1.023)
        maybe = sum(rows for ns, rows in latencies if ns <= bound_s * 1e9 * 1.023)
        assert surely <= count <= maybe


def test_a_histogram_goes_on_over_attempts() -> None:
    histogram = LatencyHistogram()
    histogram.add(3_000_000, 10)
    attempts = iter([0, 1])
    reader = reader_of(lambda: sink_of(histogram, next(attempts)))
    first = found(reader, "whale_ray_sink_latency_seconds")["out", "0"]
    second = found(reader, "whale_ray_sink_latency_seconds")["out", "0"]
    assert isinstance(first, Buckets) and second == first + first


@given(st.lists(st.integers(1, 10**12), max_size=50))
def test_a_histogram_is_copied_whole(latencies: list[int]) -> None:
    import pickle

    histogram = LatencyHistogram()
    for latency in latencies:
        histogram.add(latency, 2)
    copied = pickle.loads(pickle.dumps(histogram))
    copied.add(1, 1)
    histogram.add(1, 1)
    bounds = [10**power for power in range(1, 13)]
    assert copied.rows_up_to(bounds) == histogram.rows_up_to(bounds)
    assert (copied.rows, copied.sum_ns) == (histogram.rows, histogram.sum_ns)
    assert copied.quantile_ms(0.9) == histogram.quantile_ms(0.9)


def test_no_members_no_series() -> None:
    status = JobStatus("running", ALIVE, replace(full_metrics(), members=()))
    names = {family.metric.name for family in reader_of(lambda: status).read()}
    assert ROWS_IN not in names and "whale_ray_link_up" in names
