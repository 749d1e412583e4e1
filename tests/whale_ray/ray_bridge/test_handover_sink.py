"""Results for Ray and Spark are their job's rows, whatever its earlier tries have left."""

from __future__ import annotations

from typing import Any, cast

import pyarrow as pa
import pytest

import whale_ray as whale
from whale_ray.configs.errors import OutputError
from whale_ray.configs.settings import Settings
from whale_ray.operators.sinks.base import SinkWriter, Staged
from whale_ray.operators.sinks.staging import OutputFolder
from whale_ray.ray_bridge.dataset import HandoverSink, ray_dataset_sink
from whale_ray.testing.driving import instance_context

TOKEN = "job-0"


@pytest.fixture
def sink() -> HandoverSink:
    return cast("HandoverSink", ray_dataset_sink().configured(Settings()))


def opened(sink: HandoverSink) -> SinkWriter:
    return sink.open(instance_context(0, 1), TOKEN)


def staged(writer: SinkWriter, epoch: int, *numbers: int) -> Staged:
    writer.write(whale.Batch.from_arrow(pa.record_batch({"n": pa.array(numbers, pa.int64())})))
    part = writer.stage_epoch(epoch)
    assert part is not None
    return part


def numbers_of(result: Any) -> list[int]:
    return sorted(row["n"] for row in result.to_arrow().to_pylist())


def test_a_part_that_a_dead_worker_left_is_not_taken_for_one_of_the_result(
    sink: HandoverSink,
) -> None:
    """It died between the two steps of a staging, when its file had its name already."""
    dead = sink._files().open(instance_context(0, 1), TOKEN)
    staged(dead, 1, 77)
    writer = opened(sink)
    parts = [staged(writer, epoch, epoch) for epoch in (2, 3)]
    assert numbers_of(sink.publish(TOKEN, parts)) == [2, 3]


@pytest.mark.parametrize("publish", ["publish", "publish_partial"])
def test_a_job_that_goes_back_behind_its_publication_has_published(
    sink: HandoverSink, publish: str
) -> None:
    """Whoever has got the result can still read it."""
    writer = opened(sink)
    parts = [staged(writer, epoch, epoch) for epoch in (1, 2, 3)]
    first = getattr(sink, publish)(TOKEN, parts)
    sink.recover(TOKEN, parts, bounded=True)
    assert numbers_of(first) == [1, 2, 3]
    again = getattr(sink, publish)(TOKEN, parts)
    assert numbers_of(again) == numbers_of(first) == [1, 2, 3]


def test_a_partial_result_that_was_not_in_its_place_yet_is_published(
    sink: HandoverSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The controller died between the two steps of its publication."""
    writer = opened(sink)
    parts = [staged(writer, epoch, epoch) for epoch in (1, 2)]

    def die(*_: object) -> None:
        raise InterruptedError

    with monkeypatch.context() as patch:
        patch.setattr(OutputFolder, "publish", die)
        with pytest.raises(OutputError):
            sink.publish_partial(TOKEN, parts)
    assert numbers_of(sink.publish_partial(TOKEN, parts)) == [1, 2]
