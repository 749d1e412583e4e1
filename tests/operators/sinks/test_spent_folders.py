"""Hidden folders of killed jobs: the job that resumes removes those that nobody needs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from tests.operators.sinks.test_epoch_parts import manifest_of, numbers, rows_in, stage
from whale_ray.configs.settings import Settings
from whale_ray.operators import sinks
from whale_ray.operators.sinks.base import CommitId
from whale_ray.state.epochs.checkpoint_store import CheckpointStore


@pytest.mark.parametrize("committed", [True, False])
def test_the_job_that_resumes_removes_the_hidden_folder_once_no_part_is_in_it(
    tmp_path: Path, committed: bool
) -> None:
    """Of the first job all processes were killed, after a commit or just before."""
    url = str(tmp_path / "checkpoints")
    sink = sinks.csv(tmp_path / "out").configured(
        Settings().with_overrides({"checkpoints.url": url})
    )
    staged = stage(sink, "a", numbers(0), 1)
    if committed:
        sink.commit(CommitId("a", 1), [staged])
        cast(Any, sink)._epochs("a").hold(staged.schema).close()  # by the next rows
    store = CheckpointStore.at(url)
    claim = store.take_claim("a", "t", beats=False)
    store.write_manifest(manifest_of("a", 1))
    claim.close()
    hidden = tmp_path / ".out.whale-a"
    assert hidden.exists()
    sink.recover("b", [staged], bounded=False)
    assert hidden.exists() != committed
    sink.commit(CommitId("b", 1), [staged])
    assert not hidden.exists()
    assert rows_in(tmp_path / "out") == [0, 1, 2]


@pytest.mark.parametrize("why", ["is held", "of other checkpoints", "unreadable"])
def test_a_hidden_folder_that_may_be_needed_stays(tmp_path: Path, why: str) -> None:
    settings = Settings().with_overrides({"checkpoints.url": str(tmp_path / "checkpoints")})
    sink = sinks.csv(tmp_path / "out").configured(settings)
    staged = stage(sink, "a", numbers(0), 1)
    sink.commit(CommitId("a", 1), [staged])
    first = replace(sink, checkpoints="memory://others") if why == "of other checkpoints" else sink
    hold = cast(Any, first)._epochs("a").hold(staged.schema)
    hidden = tmp_path / ".out.whale-a"
    if why != "is held":
        hold.close()
    if why == "unreadable":
        (hidden / "_whale-parts-staged").write_text("{")
    cast(Any, sink)._epochs("b").remove_spent()
    assert hidden.exists()
    hold.close()
