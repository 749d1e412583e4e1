"""Which worker runs which instance."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whale_ray.configs.errors import SettingsError
from whale_ray.plan.placement import place


def test_neighbours_share_a_worker_and_single_stages_take_turns() -> None:
    assert place([1, 6, 1, 2], 4) == ((0,), (0, 0, 1, 2, 2, 3), (1,), (0, 2))


def test_sources_have_workers_of_their_own() -> None:
    placed = place([1, 6, 1, 2], 4, [True, False, False, True], source_workers=1)
    assert placed == ((0,), (1, 1, 2, 2, 3, 3), (1,), (0, 0))


def test_without_workers_of_their_own_sources_share() -> None:
    assert place([1, 3], 3, [True, False]) == place([1, 3], 3)


@given(
    st.lists(st.tuples(st.integers(1, 40), st.booleans()), max_size=6),
    st.integers(1, 9),
    st.integers(1, 9),
)
def test_nothing_else_runs_where_sources_do(
    stages: list[tuple[int, bool]], source_workers: int, others: int
) -> None:
    parallelisms, sources = [n for n, _ in stages], [source for _, source in stages]
    placed = place(parallelisms, source_workers + others, sources, source_workers)
    for instances, (parallelism, source) in zip(placed, stages, strict=True):
        assert len(instances) == parallelism
        assert list(instances) == sorted(instances)
        assert all((worker < source_workers) is source for worker in instances)
        assert max(instances) < source_workers + others


def test_some_worker_must_be_left() -> None:
    with pytest.raises(SettingsError) as caught:
        place([1, 3], 2, [True, False], source_workers=2)
    assert str(caught.value) == (
        "runtime.source_workers=2 leaves none of 2 workers for what follows the sources: "
        "use 3 workers or more"
    )
