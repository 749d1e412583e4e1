"""What a user may write. Type checkers accept all of it; `test_typing.py` holds them to it.

Never run: these are types alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, assert_type

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import whale_ray as whale


class Matcher(whale.CoProcess):
    """An operator with two inputs."""

    per_worker = True

    def open(self, context: whale.InstanceContext) -> None:
        self.places: dict[int, int] = dict.fromkeys(context.instances, 0)

    def on_left(self, batch: whale.Batch, out: whale.Output) -> None:
        self.places[0] += batch.num_rows

    def on_right(self, batch: whale.Batch, out: whale.Output) -> None:
        out.emit({"request_id": batch["request_id"]})


class Best(whale.Process):
    """An operator with one input."""

    def __init__(self, most: int = 1) -> None:
        self.most = most

    def on_batch(self, batch: whale.Batch, out: whale.Output) -> None:
        for row in batch.rows():
            out.emit_row(**row)


@whale.columns
def kilometres(batch: whale.Batch) -> Mapping[str, Any]:
    """Return columns."""
    return {"km": np.asarray(batch["m"]) / 1000}


@whale.columns
def moving(batch: whale.Batch) -> npt.NDArray[np.bool_]:
    """Return which rows stay."""
    return np.ones(batch.num_rows, np.bool_)


def doubled(row: whale.Row) -> Iterator[Mapping[str, Any]]:
    """Make two rows of one."""
    yield {**row, "copy": 0}
    yield {**row, "copy": 1}


def third(batch: whale.Batch, parallelism: int) -> npt.NDArray[np.int64]:
    """Return the instance of each row."""
    return np.arange(batch.num_rows) % parallelism


def ride_hailing(requests_frame: Any) -> whale.Job:
    """Build what the README shows."""
    topology = whale.Topology("ride-hailing")
    positions = topology.source(
        whale.sources.parquet("gps/"),
        id="positions",
        event_time="event_time",
        max_out_of_order_ms=0,
    )
    requests = topology.source(
        whale.sources.spark(requests_frame), id="requests", event_time="request_time"
    )
    assert_type(positions, whale.Stream)
    matches = (
        positions.filter(whale.col("lat_e5") > 0, id="valid")
        .key_by("vehicle_id")
        .connect(requests.broadcast())
        .process(Matcher, id="match", parallelism=16)
    )
    best = matches.key_by("request_id").process(Best, id="best", parallelism=4)
    assert_type(best, whale.Stream)
    assert_type(best.sink(whale.sinks.parquet("out/"), id="out"), whale.SinkHandle)
    assert_type(topology.explain(workers=2), whale.Explanation)
    assert_type(topology.explain(settings={"runtime.hosts": 2}), whale.Explanation)
    return whale.submit(topology)


class Letters(whale.transports.Sender):
    """Carries nothing."""

    def open(self, context: whale.transports.TransportContext, address: str) -> None:
        """Take an address of its receiver's kind."""

    def ready_to_send(self) -> bool:
        """Never."""
        return False

    def put(self, message: memoryview) -> None:
        """Take a message."""


class Mailbox(whale.transports.Receiver):
    """Brings nothing."""

    def open(self, context: whale.transports.TransportContext) -> str:
        """Return an address of any kind."""
        return context.job_id

    def available(self) -> bool:
        """Never."""
        return False

    def get(self) -> bytes | None:
        """Return no message."""
        return None

    def release_buffer(self, buffer: object) -> None:
        """Take it back."""


def everything_else(stream: whale.Stream, frame: pa.Table) -> None:
    """Use the other verbs, groupings and kinds of function."""
    topology = whale.Topology("more")
    topology.source(whale.sources.arrow(frame), on_bad_rows="drop")
    stream.map(lambda row: {"speed": row["m"] / row["s"]}).map(kilometres, parallelism=2)
    stream.map(kilometres, schema={"km": "float64"}).map(dict, schema=whale.Schema.of(km="float64"))
    stream.map(kilometres, schema={"km": float}).map(
        dict, schema=whale.Schema.of(km=float, n="long")
    )
    stream.filter(moving).filter(lambda row: bool(row["m"] > 0)).flat_map(doubled)
    stream.select("m", (whale.col("m") / 1000).alias("km")).with_column("one", whale.lit(1))
    stream.with_column("kind", whale.when(whale.col("m") > 9, "far").otherwise("near"))
    stream.shuffle().map(kilometres, parallelism=8).global_().sink(whale.sinks.collect())
    assert_type(stream.key_by("a", "b", on_null="drop"), whale.GroupedStream)
    stream.direct("instance").process(lambda: Best(3))
    stream.partition_by(third).process(Best, event_time_order=False)
    grouped = stream.local_or_shuffle().connect(stream.broadcast())
    assert_type(grouped, whale.ConnectedStream)
    carrier = whale.transports.Transport("post", Letters, Mailbox, queue_length=8, mutex=False)
    assert_type(stream.via(carrier), whale.Stream)
    assert_type(stream.key_by("a").via(carrier), whale.GroupedStream)
    whale.Topology("by-post", transport=carrier)
    try:
        whale.run(topology)
    except whale.errors.WhaleError as error:
        assert_type(error.exit_code, int)
