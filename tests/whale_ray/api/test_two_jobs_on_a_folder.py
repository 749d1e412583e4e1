"""Two jobs on one folder of checkpoints: the second is refused, or fences the first."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import whale_ray as whale
from tests.whale_ray.api.test_checkpoints import COUNT, GATE, OFTEN, numbers, until, visible
from tests.whale_ray.user_code.gated_numbers import expected
from whale_ray.configs.errors import ClaimLostError, OutputError

pytestmark = pytest.mark.usefixtures("no_leaks")


def test_a_second_job_is_refused_and_one_that_takes_over_lets_the_first_commit_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    state = tmp_path / "state"
    first = whale.submit(numbers(tmp_path), on="processes", workers=2, checkpoints=state, **OFTEN)
    until(lambda: len(visible(tmp_path)) == GATE, "the first half is not visible")
    with pytest.raises(OutputError, match=r"is in use by job numbers-"):  # not: remove the output
        whale.submit(numbers(tmp_path), on="processes", checkpoints=state)
    second = whale.submit(
        numbers(tmp_path), on="processes", workers=1, checkpoints=state, restore="latest", **OFTEN
    )
    with pytest.raises(OutputError, match=r"is in use by job numbers-.*take_over=true") as refused:
        second.wait(60)
    assert len(str(refused.value).splitlines()) == 1
    assert first.state == "running"
    assert os.listdir(state / "jobs") == [first.id], "of the refused ones nothing stays"
    third = whale.resume(state, workers=1, take_over=True)
    with pytest.raises(ClaimLostError, match=rf"which was taken over by job {third.id}") as lost:
        first.wait(60)
    assert len(str(lost.value).splitlines()) == 1
    assert "the next one follows" not in caplog.text, "it was said to run on"
    assert visible(tmp_path) == expected(GATE)
    until(lambda: third.metrics().checkpoints.count, "the third job takes no checkpoint")
    fourth = whale.resume(state, workers=1)  # that the job before took over is not kept
    with pytest.raises(OutputError, match=f"is in use by job {third.id}"):
        fourth.wait(60)
    assert fourth.id not in os.listdir(state / "jobs")
    (tmp_path / "go").touch()
    third.wait(60)
    assert visible(tmp_path) == expected(COUNT)
