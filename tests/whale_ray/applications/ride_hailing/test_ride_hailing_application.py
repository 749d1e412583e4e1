"""What a run reports, and what the application's topology looks like."""

from __future__ import annotations

import json

import whale_ray as whale
from whale_ray.applications.ride_hailing.generator import POSITIONS_SCHEMA, REQUESTS_SCHEMA
from whale_ray.applications.ride_hailing.report import describe_result, render_result
from whale_ray.applications.ride_hailing.settings import RideHailingSettings
from whale_ray.applications.ride_hailing.topology import build
from whale_ray.applications.shared.report import Run

OUTSIDE = "requests: outside the time span of the positions"
RUN = Run(
    command="whale-ray run ride-hailing --json",
    rows_in={"positions": 1_000_000, "requests": 60_000},
    rows_rejected={OUTSIDE: 10_000},
    streamed=1_050_000,
    seconds=2.5,
    restarts=1,
    latency_ms=(1.23456, 20.0),
    more_settings={"workers": 2},
    phases_s={"preparation": 1.23456},
)
RESULT = describe_result(
    RUN, RideHailingSettings(radius_m=500.0), rows_out=50_000, output="out/ride-hailing"
)
ROWS = [
    {"request_id": 7, "vehicle_id": "ejtobu", "distance_m": 12.345},
    {"request_id": 12, "vehicle_id": None, "distance_m": None},
]


def test_the_object_has_all_fields():
    assert json.loads(json.dumps(RESULT)) == {
        "application": "ride-hailing",
        "command": "whale-ray run ride-hailing --json",
        "settings": {
            "radius_m": 500.0,
            "max_age_s": 600.0,
            "matching_instances": 16,
            "best_instances": 4,
            "workers": 2,
        },
        "rows_in": {"positions": 1_000_000, "requests": 60_000},
        "rows_out": 50_000,
        "rows_rejected": {OUTSIDE: 10_000},
        "seconds": 2.5,
        "phases_s": {"preparation": 1.235},
        "tuples_per_s": 420_000,
        "restarts": 1,
        "latency_ms": {"p50": 1.235, "p99": 20.0},
        "output": "out/ride-hailing",
    }


def test_the_table_is_short_and_says_how_to_load_the_output():
    text = render_result(RESULT, ROWS, 'pandas.read_parquet("out/ride-hailing")')
    assert text == (
        "ride-hailing: done in 2.5 s\n"
        "  read          1,000,000 positions, 60,000 requests\n"
        "  left out      10,000 requests: outside the time span of the positions\n"
        "  tuples out    50,000\n"
        "  throughput    420,000 tuples/s\n"
        "  restarts      1\n"
        "  latency       p50 1.2 ms, p99 20.0 ms, source to sink\n"
        "  output        out/ride-hailing\n"
        "\n"
        "  request_id  vehicle_id  distance_m\n"
        "  7           ejtobu      12.3\n"
        "  12          -           -\n"
        "\n"
        'load it with: pandas.read_parquet("out/ride-hailing")'
    )


def test_an_empty_run_has_no_rate_and_no_latency():
    run = Run("", {"positions": 0}, {}, 0, 0.0, 0, (None, None), {})
    result = describe_result(run, RideHailingSettings(), rows_out=0, output=None)
    assert result["tuples_per_s"] == 0
    assert result["latency_ms"] == {"p50": None, "p99": None}
    assert render_result(result, [], "").splitlines() == [
        "ride-hailing: done in 0.0 s",
        "  read          0 positions",
        "  tuples out    0",
        "  throughput    0 tuples/s",
        "  restarts      0",
        "",
        "  (no row)",
    ]


def test_the_topology_has_the_operators_of_its_description():
    positions, requests = (
        whale.sources.arrow(schema.empty_table()) for schema in (POSITIONS_SCHEMA, REQUESTS_SCHEMA)
    )
    settings = RideHailingSettings(matching_instances=4, best_instances=2)
    topology = build(positions, requests, whale.sinks.collect(), settings)
    plan = topology.logical_plan()
    assert [(node.id, node.verb, node.parallelism) for node in plan.nodes] == [
        ("positions", "source", None),
        ("requests", "source", None),
        ("valid", "filter", None),
        ("match", "process", 4),
        ("best", "process", 2),
        ("out", "sink", None),
    ]
    match = plan.node("match")
    assert [feed.grouping.describe() for feed in match.inputs] == ["key by vehicle_id", "all"]
    assert match.per_worker
    assert match.event_time_order
    assert plan.node("best").per_worker


def test_without_any_row_the_topology_ends():
    positions, requests = (
        whale.sources.arrow(schema.empty_table()) for schema in (POSITIONS_SCHEMA, REQUESTS_SCHEMA)
    )
    job = whale.run(build(positions, requests, whale.sinks.collect()))
    assert job.results("out").rows == 0
