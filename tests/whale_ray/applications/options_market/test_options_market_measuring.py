"""What a run reports: latencies, counts that must add up, placements, mistakes."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whale_ray.applications.options_market.generated import generated_contracts
from whale_ray.applications.options_market.placements import (
    PLACEMENTS,
    check_given,
    placement_settings,
    workers_of,
)
from whale_ray.applications.options_market.report import describe_result, render_result
from whale_ray.applications.options_market.schemas import MOMENTS
from whale_ray.applications.options_market.settings import OptionsMarketSettings
from whale_ray.cli.main import main
from whale_ray.configs.errors import EXIT_USAGE, JobError, SettingsError, WhaleError
from whale_ray.configs.settings import Settings
from whale_ray.lab.bench.options_market.measuring import (
    STAGES,
    Ingest,
    MarketRun,
    StageLatency,
    _check,
    latencies_of,
)

INGEST = Ingest(offered=1_000, taken=990, missed=10, gaps=2, damaged=1, missed_by_lines=9)
MEASURED = MarketRun(
    state="finished",
    ingest=INGEST,
    trades=990,
    decisions=30,
    samples=20,
    stages=dict(
        zip(STAGES, (StageLatency(value, 1.0, 2.0) for value in (30, 8, 50, 12)), strict=True)
    ),
    end_to_end=StageLatency(100.0, 90.0, 200.0),
    wait_on_line=StageLatency(40.0, 30.0, 2_000.0),
    from_due=StageLatency(140.0, 120.0, 2_200.0),
    seconds=5.01,
    cpu_s=3.5,
    workers=3,
    hosts=1,
    job=None,
)


def moments(steps: list[list[int]]) -> dict[str, np.ndarray]:
    """Return moments of decisions that are so many ns apart, the first one's due times."""
    places = np.cumsum(np.array(steps, np.int64).reshape(-1, len(MOMENTS)), axis=1)
    return {name: places[:, place] for place, name in enumerate(MOMENTS)}


@given(st.lists(st.lists(st.integers(0, 10**7), min_size=6, max_size=6), min_size=1, max_size=40))
def test_the_stages_means_add_up_to_the_way(steps):
    count, found = latencies_of(moments(steps))
    assert count == len(steps) - 2 * (len(steps) // 6)
    ways = sum(found[name].mean_us for name in STAGES)
    assert ways == pytest.approx(found["end_to_end"].mean_us)
    whole = found["end_to_end"].mean_us + found["wait_on_line"].mean_us
    assert whole == pytest.approx(found["from_due"].mean_us)


def test_the_middle_two_thirds_of_the_decisions_count():
    """In the order of their messages, whatever the order in which they arrive."""
    steps = [
        [place * 1_000, 0, 5_000 if 2 <= place < 10 else 10**9, 0, 0, 0] for place in range(12)
    ]
    count, found = latencies_of(moments(steps[::-1]))
    assert count == 8
    assert found["feed_handler"] == StageLatency(5.0, 5.0, 5.0)


def test_without_decisions_there_is_no_latency():
    assert latencies_of({}) == (0, {})
    assert latencies_of(moments([])) == (0, {})


def test_differing_clocks_are_reported():
    with pytest.raises(JobError) as refused:
        latencies_of(moments([[0, 1, 1, -7_000, 1, 1]]))
    assert str(refused.value) == (
        "to_decision_engine ends 7 µs before it begins: the job's hosts have clocks of their own; "
        "use workers of one machine"
    )


@pytest.mark.parametrize(
    ("changes", "trades", "decided", "message"),
    [
        ({}, 990, 30, None),
        ({"taken": 989}, 990, 30, "1,000 messages, but 989 taken, 10 missed"),
        (
            {"missed_by_lines": 8},
            990,
            30,
            "handlers miss 10 messages, lines lost 8, and 1 were damaged",
        ),
        ({}, 980, 30, "handlers took 990 trades, decision engines 980"),
        ({}, 990, 29, "engines made 30 decisions, the collector has 29"),
    ],
)
def test_nothing_gets_lost_unseen(changes, trades, decided, message):
    ingest = replace(INGEST, **changes)
    if message is None:
        _check(ingest, trades, 30, decided)
        return
    with pytest.raises(JobError) as refused:
        _check(ingest, trades, 30, decided)
    assert str(refused.value) == f"the figures of the run do not add up: {message}"


def test_a_placement_is_nothing_but_settings():
    for name in PLACEMENTS:
        for workers in (1,) if PLACEMENTS[name].fused else (2, 3, 8):
            overrides = placement_settings(name, workers, feeds=4)
            settings = Settings().with_overrides(overrides)
            assert settings.runtime.source_workers < workers
            assert settings.transport.wtl_ms == 0.0
    assert placement_settings("shared-memory", 8, feeds=4)["runtime.source_workers"] == 3
    assert placement_settings("tcp", 3, feeds=4)["runtime.hosts"] == 3
    assert placement_settings("shared-memory", 3, feeds=4)["runtime.hosts"] == 1


@pytest.mark.parametrize(
    ("placement", "given", "refused"),
    [
        ("verbs", {"transport.between_hosts": "tcp"}, "verbs"),
        ("tcp", {"transport.between_hosts": "verbs"}, "tcp"),
        ("tcp", {"runtime.hosts": 1}, "3"),
        ("shared-memory", {"runtime.hosts": 2}, "1"),
        ("fused", {"runtime.hosts": 2}, "1"),
        ("tcp", {"runtime.hosts": 3, "transport.between_hosts": "tcp"}, None),
        ("shared-memory", {"transport.between_hosts": "tcp", "runtime.source_workers": 2}, None),
    ],
)
def test_settings_make_no_other_placement_of_one(placement, given, refused):
    settings = Settings().with_overrides(given)
    if refused is None:
        check_given(placement, 3, settings)
        return
    with pytest.raises(SettingsError) as caught:
        check_given(placement, 3, settings)
    ((key, value),) = given.items()
    assert str(caught.value) == (
        f"{key}={value} is no part of the placement {placement!r}, which has {refused}; "
        "leave it out, or choose another placement"
    )


def test_workers_that_a_placement_cannot_have_are_refused():
    assert [workers_of("fused", count, 2) for count in (1, 2)] == [1, 2]
    assert workers_of("tcp", 7, 2) == 7
    cores = len(os.sched_getaffinity(0))
    assert workers_of("fused", None, 2) == min(2, cores)
    assert workers_of("tcp", None, 2) == (3 if cores >= 3 else 2)
    with pytest.raises(SettingsError) as refused:
        workers_of("fused", 3, 2)
    assert str(refused.value) == (
        "--placement fused has a process for every line at most: give --workers 1 to 2, not 3"
    )
    with pytest.raises(SettingsError) as refused:
        workers_of("tcp", 1, 2)
    assert str(refused.value) == (
        "--placement tcp needs 2 workers or more, not 1: handlers have their own"
    )


# --- the report ------------------------------------------------------------------------------


def described(measured: MarketRun = MEASURED) -> dict:
    return describe_result(
        command="whale-ray run options-market",
        settings=OptionsMarketSettings(),
        more_settings={"on": "processes"},
        placement="shared-memory",
        book=generated_contracts(),
        rows_rejected={"daily: unknown right": 3},
        measured=measured,
        output="out",
    )


def test_a_result_as_people_read_it():
    assert render_result(described()).splitlines() == [
        "options-market: done in 5.0 s",
        "  placement     shared-memory: 3 workers, 1 hosts",
        "  contracts     30,552, generated",
        "  rate          50,000 messages/s, 15.6 × the real one",
        "  left out      3 daily: unknown right",
        "  messages      1,000 offered, 990 taken, 10 missed (1.0000%), "
        "0.01% or more: the rate is too high",
        "  decisions     30",
        "  damaged       1",
        "  output        out",
        "",
        "  latency, µs                 mean         p50         p99",
        "  feed handler                30.0         1.0         2.0",
        "  to decision engine           8.0         1.0         2.0",
        "  decision engine             50.0         1.0         2.0",
        "  to collector                12.0         1.0         2.0",
        "  end to end                 100.0        90.0       200.0",
        "  wait on line                40.0        30.0     2,000.0",
        "  from due                   140.0       120.0     2,200.0",
        "",
        "  transport     20% of the mean from handler to collector",
    ]


def test_a_run_that_was_stopped_says_so():
    stopped = described(replace(MEASURED, state="stopped"))
    assert stopped["state"] == "stopped"
    assert render_result(stopped).startswith("options-market: stopped early, after 5.0 s\n")


def test_a_result_as_programs_read_it():
    result = described()
    assert result["messages"] == {
        "offered": 1_000,
        "taken": 990,
        "missed": 10,
        "missed_share": 0.01,
        "gaps": 2,
        "damaged": 1,
    }
    assert result["state"] == "finished"
    assert result["transport_share"] == 0.2
    assert list(result["latency_us"])[:4] == list(STAGES)
    assert result["latency_us"]["to_collector"] == {"mean": 12.0, "p50": 1.0, "p99": 2.0}
    assert result["settings"]["rate"] == 50_000 and result["settings"]["on"] == "processes"


def test_a_run_without_decisions_says_so():
    empty = replace(
        MEASURED, samples=0, stages={}, end_to_end=None, wait_on_line=None, from_due=None
    )
    result = described(empty)
    assert result["transport_share"] is None
    assert result["latency_us"] == {"end_to_end": None, "wait_on_line": None, "from_due": None}
    assert render_result(result).endswith("\n\n  (no decision whose latency counts)")
    assert issubclass(JobError, WhaleError)


# --- the command -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "--placement fused --engines 1",
            "--placement fused has an engine for every line; leave out --engines, or give --feeds",
        ),
        (
            "--placement fused --set runtime.hosts=2",
            "runtime.hosts=2 is no part of the placement 'fused', which has 1; leave it out, or "
            "choose another placement",
        ),
        (
            "--workers 1",
            "--placement shared-memory needs 2 workers or more, not 1: handlers have their own",
        ),
        ("--overwrite", "--overwrite means nothing without --output; leave it out"),
    ],
)
def test_mistakes_are_one_line(words, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["run", "options-market", *words.split()]) == EXIT_USAGE
    assert capsys.readouterr().err.splitlines()[-1] == f"whale-ray: {message}"
