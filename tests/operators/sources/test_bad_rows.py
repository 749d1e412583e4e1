"""Separating good rows from bad ones, against doing it one by one."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whale_ray.operators.sources.bad_rows import Bad, Good, separate


class RejectedError(Exception):
    pass


@given(st.lists(st.integers(-3, 9), max_size=40), st.integers(0, 100))
def test_finds_exactly_the_bad_rows_in_order(rows: list[int], first: int) -> None:
    calls = 0

    def convert(some: Sequence[int]) -> list[int]:
        nonlocal calls
        calls += 1
        if any(one < 0 for one in some):
            raise RejectedError(f"{len(some)}")
        return [one * 10 for one in some]

    good: list[tuple[int, int]] = []
    bad: list[int] = []
    for part in separate(rows, convert, (RejectedError,), first):
        if isinstance(part, Good):
            good += enumerate(part.value, part.first)
        else:
            assert isinstance(part, Bad)
            bad.append(part.index)
    expected = list(enumerate(rows, first))
    assert good == [(index, one * 10) for index, one in expected if one >= 0]
    assert bad == [index for index, one in expected if one < 0]
    assert calls <= 1 + 2 * len(bad) * len(rows).bit_length()


def test_stops_working_with_its_caller() -> None:
    seen: list[int] = []

    def convert(some: Sequence[int]) -> None:
        seen.extend(some)
        raise RejectedError

    assert isinstance(next(separate(range(1024), convert, (RejectedError,))), Bad)
    assert len(seen) == 2047  # 1024 + 512 + … + 1: only ever the first half


def test_other_errors_pass_through() -> None:
    def convert(some: Sequence[int]) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        next(separate([1], convert, (RejectedError,)))
