"""Rows of other columns than those that a file sink's output has from epochs before."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from whale_ray.configs.errors import OutputError
from whale_ray.operators import sinks
from whale_ray.testing import instance_context
from whale_ray.transport.wire.batch import Batch

NUMBERS, TEXTS = (Batch.from_pydict({"n": [one]}) for one in (1, "x"))


def test_rows_of_other_columns_are_refused_where_they_are_written(tmp_path: Path) -> None:
    """A job does not run on without ever committing: at the latest its next part fails it."""
    sink = sinks.csv(tmp_path / "out")
    first, second = (sink.open(instance_context(one, 2), "a") for one in range(2))
    first.write(NUMBERS)
    second.write(TEXTS)
    staged = first.stage_epoch(1)
    with pytest.raises(OutputError, match="has other columns"):
        second.stage_epoch(1)
    with pytest.raises(OutputError, match="'n' is string instead of int64; go on with the code"):
        second.write(TEXTS)
    for writer in (first, second):
        writer.abort()
    assert staged is not None
    sink.recover("b", [replace(staged, epoch=1)], bounded=False)
    resumed = sink.open(instance_context(0, 1), "b")
    with pytest.raises(OutputError, match="'n' is string instead of int64; go on with the code"):
        resumed.write(TEXTS)
    resumed.abort()
