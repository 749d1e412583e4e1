"""A job dies as a sink of files publishes; a restored one carries it out, in its name."""

from __future__ import annotations

import itertools
import os
import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from tests.operators.sinks.dying import DiedError, Mortal
from tests.operators.sinks.test_epoch_parts import CHANGES, manifest_of, numbers, rows_in, stage
from whale_ray.configs.settings import Settings
from whale_ray.operators import sinks
from whale_ray.operators.sinks.base import Sink, Staged
from whale_ray.state.epochs.checkpoint_store import CheckpointStore


@pytest.mark.parametrize("publish", ["publish", "publish_partial"])
@pytest.mark.parametrize("with_rows", [True, False])
def test_a_publication_that_dies_anywhere_is_carried_out_by_a_restored_job(
    tmp_path: Path, publish: str, with_rows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sink without rows has nothing in the checkpoint."""
    columns = pa.schema({"n": pa.int64()}).serialize().to_pybytes()
    for dies_at in itertools.count(1):
        out = tmp_path / str(dies_at) / "out"
        out.parent.mkdir()
        sink = sinks.csv(out)
        named = [stage(sink, "a", numbers(3 * one), 1, one) for one in range(2)]
        if not with_rows:
            named = []
            shutil.rmtree(tmp_path / str(dies_at) / ".out.whale-a")
        staged = [*named, Staged(0, 0, schema=columns)]
        with monkeypatch.context() as dying:
            mortal = Mortal(dying, CHANGES, dies_at)
            with suppress(DiedError):
                getattr(sink, publish)("a", staged)
        for _ in range(2):
            sink.recover("a", named, bounded=True)
        assert getattr(sink, publish)("a", staged).rows == 3 * len(named)
        place = out if publish == "publish" else out.with_name("out.partial")
        assert rows_in(place) == list(range(3 * len(named)))
        assert os.listdir(out.parent) == [place.name]
        if mortal.steps < dies_at:
            break
    assert dies_at > 6


def test_what_a_restored_job_is_to_publish_lives_as_long_as_its_checkpoints(
    tmp_path: Path,
) -> None:
    def configured(store: str) -> Sink:
        settings = Settings().with_overrides({"checkpoints.url": str(tmp_path / store)})
        return sinks.csv(tmp_path / "out").configured(settings)

    staged = [stage(configured("first"), "a", numbers(0), 1)]
    store = CheckpointStore.at(str(tmp_path / "second"))
    claim = store.take_claim("b", "t", beats=False)
    store.write_manifest(replace(manifest_of("b", 2), publisher="a"))
    claim.close()
    restored = configured("second")
    restored.recover("a", staged, bounded=True)
    sinks.csv(tmp_path / "out").prepare("x", bounded=True)
    assert restored.publish("a", staged).rows == 3
    staged = [stage(restored, "a", numbers(0), 1)]
    shutil.rmtree(tmp_path / "second")
    sinks.csv(tmp_path / "other").prepare("x", bounded=True)
    sinks.csv(tmp_path / "out", overwrite=True).prepare("x", bounded=True)
    assert not (tmp_path / ".out.whale-a").exists()
