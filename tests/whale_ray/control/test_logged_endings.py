"""What goes wrong while a job ends is logged, and the end goes on."""

from __future__ import annotations

import pytest

from whale_ray.configs.errors import Interrupted, OutputError
from whale_ray.control.failures import logged


@pytest.mark.parametrize(
    ("raised", "told", "has_traceback"),
    [
        (OutputError("no room"), "cannot end it: no room", False),
        (KeyboardInterrupt(), "cannot end it: interrupted", False),
        (ValueError("a user's"), "cannot end it", True),
    ],
)
def test_only_what_is_nobodys_mistake_has_a_traceback(
    caplog: pytest.LogCaptureFixture, raised: BaseException, told: str, has_traceback: bool
) -> None:
    with logged("end it"):
        raise raised
    (record,) = caplog.records
    assert record.getMessage() == told
    assert (record.exc_info is not None) is has_traceback


def test_an_interrupted_job_stays_interrupted() -> None:
    with pytest.raises(Interrupted), logged("end it"):
        raise Interrupted
