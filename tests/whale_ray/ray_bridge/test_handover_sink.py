"""Results for Ray and Spark are their job's rows, whatever its earlier tries have left."""

from __future__ import annotations

from typing import Any, cast

import pyarrow as pa
import pytest

import whale_ray as whale
from whale_ray.configs.settings import Settings
from whale_ray.operators.sinks.base import SinkWriter, Staged
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
def test_a_job_that_goes_back_behind_its_publication_publishes_again(
    sink: HandoverSink, publish: str
) -> None:
    writer = opened(sink)
    parts = [staged(writer, epoch, epoch) for epoch in (1, 2)]
    assert numbers_of(getattr(sink, publish)(TOKEN, parts)) == [1, 2]
    sink.recover(TOKEN, parts[:1], bounded=True)
    writer = opened(sink)
    again = [parts[0], staged(writer, 2, 20), staged(writer, 3, 30)]
    assert numbers_of(getattr(sink, publish)(TOKEN, again)) == [1, 20, 30]
