"""Proposals of parallelism while a job runs: equation (2) with what is measured."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from whale_ray.optimizer.scaling_policy import DopProposal, ScalingPolicy, StageLoad

HELD_BACK = StageLoad(
    rows_per_s=100_000, cpu_per_s=0.95e9, producers_wait=0.5, waits=0.0, busy=1.0, spare=3.0
)


def look(policy: ScalingPolicy, load: StageLoad, looks: int) -> list[DopProposal]:
    found = [policy.observe(load) for _ in range(looks)]
    return [one for one in found if one is not None]


def test_a_stage_that_holds_its_producers_back_should_have_as_many_instances_as_their_rows_need():
    """0.95 cores at half of the rows are 1.9 for all; with an instance busy 80 %, that is three."""
    (proposal,) = look(ScalingPolicy(1, 1024, 4), HELD_BACK, 20)
    assert proposal.dop == 3
    assert proposal.numbers["ppt_ns"] == 9500
    assert proposal.numbers["offered_per_s"] == 200_000
    assert proposal.formula == "min dop ≥ ppt · r_i / (1 - w) / 0.8"
    assert "wait for it 50% of the time; 3 instances would take the 200,000 rows/s" in (
        proposal.reason
    )


def test_a_proposal_says_that_workers_are_lacking():
    (proposal,) = look(ScalingPolicy(1, 1024, 2), HELD_BACK, 20)
    assert "that needs as many workers, there are 2" in proposal.reason


def test_a_stage_that_waits_itself_is_not_what_limits_the_job():
    load = StageLoad(100_000, 0.95e9, producers_wait=0.5, waits=0.6, busy=1.0, spare=0.0)
    assert not look(ScalingPolicy(1, 1024, 4), load, 20)


def test_a_moment_proposes_nothing():
    policy = ScalingPolicy(1, 1024, 4)
    quiet = StageLoad(100_000, 0.5e9, 0.0, 0.0, 0.5, 3.0)
    for _ in range(10):
        assert not look(policy, HELD_BACK, 4)
        assert not look(policy, quiet, 1)


def test_a_wait_that_swings_near_all_of_the_time_leads_to_one_proposal():
    """As it was measured: producers wait 88 to 99 % of the time, which swings from look to look."""
    policy = ScalingPolicy(1, 1024, 5)
    waits = (0.94, 0.89, 0.95, 0.96, 0.88, 0.99, 0.93, 0.97, 0.9, 0.98) * 10
    loads = [
        StageLoad(20_000 + 5_000 * (turn % 3), 0.3e9 + 0.05e9 * (turn % 3), wait, 0.0, 0.95, 3.5)
        for turn, wait in enumerate(waits)
    ]
    (proposal,) = [found for load in loads if (found := policy.observe(load)) is not None]
    assert proposal.dop == 2  # 0.35 · 4 / 0.8 instances
    assert proposal.numbers["offered_per_s"] == 4 * proposal.numbers["rows_per_s"]


def test_idle_instances_are_proposed_to_go():
    load = StageLoad(10_000, 0.3e9, 0.0, 0.0, 0.1, 7.7)
    (proposal,) = look(ScalingPolicy(8, 1024, 8), load, 20)
    assert proposal.dop == 1
    assert "8 instances are busy 4% of the time each; 1 would do" in proposal.reason


@given(
    st.integers(1, 64),
    st.builds(
        StageLoad,
        st.floats(0, 1e9),
        st.floats(0, 64e9),
        st.floats(0, 1),
        st.floats(0, 1),
        st.floats(0, 1),
        st.floats(0, 64),
    ),
)
def test_under_a_steady_load_there_is_at_most_one_proposal_and_it_is_within_bounds(
    dop: int, load: StageLoad
) -> None:
    found = look(ScalingPolicy(dop, 128, 8), load, 100)
    assert len(found) <= 1
    assert all(1 <= one.dop <= 128 and one.dop != dop for one in found)
