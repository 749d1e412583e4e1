"""Jobs whose checkpoints are in S3, over HTTP: they lose a worker, are stopped, and go on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import whale_ray as whale
from tests.s3_server import s3_server
from tests.whale_ray.api.test_checkpoints import (
    COUNT,
    GATE,
    OFTEN,
    checkpoints_of,
    numbers,
    until,
    visible,
)
from tests.whale_ray.user_code.gated_numbers import expected


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """Return the URL of a bucket that is there."""
    with s3_server("jobs"):
        yield "s3://jobs"


@pytest.mark.long
def test_a_job_goes_on_from_s3_behind_a_killed_worker_and_a_savepoint(
    bucket: str, tmp_path: Path
) -> None:
    place = f"{bucket}/numbers"
    first = whale.submit(
        numbers(tmp_path, kill_at=GATE - 100), on="processes", checkpoints=place, **OFTEN
    )
    until(lambda: len(visible(tmp_path)) == GATE, "the first half is not visible")
    until(lambda: checkpoints_of(first) > 0, "there is no checkpoint")
    first.stop(savepoint=True, timeout_s=60)
    assert (first.state, first.outcome().restarts) == ("stopped", 1)
    assert visible(tmp_path) == expected(GATE)
    (tmp_path / "go").touch()
    second = whale.run(
        numbers(tmp_path, kill_at=GATE - 100), checkpoints=place, restore="latest", **OFTEN
    )
    metrics = second.metrics().checkpoints
    assert metrics is not None and metrics.restored > 0
    assert visible(tmp_path) == expected(COUNT)
