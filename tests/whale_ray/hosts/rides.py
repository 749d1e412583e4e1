"""Hours of rides as files, the application on them, and what the batch query answers.

`python -m tests.whale_ray.hosts.rides FOLDER HOURS` makes them where that is quick, and runs the
application on them once, in this process, so that all kernels that a job takes are compiled.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import whale_ray as whale
from tests.whale_ray.applications.ride_hailing.oracle import duckdb_oracle
from tests.whale_ray.applications.ride_hailing.test_ride_hailing_runs import assert_equal_answers
from whale_ray.applications.ride_hailing.generator import CabGeneratorSettings, generate
from whale_ray.applications.ride_hailing.settings import RideHailingSettings
from whale_ray.applications.ride_hailing.topology import build
from whale_ray.operators.process import InstanceContext
from whale_ray.operators.sources.base import Source, SourceReader
from whale_ray.transport.clock import Clock
from whale_ray.transport.wire import codec
from whale_ray.transport.wire.batch import Batch
from whale_ray.transport.wire.types import Schema

HOUR_MS = 3_600_000
POSITIONS_PER_S = 2_500.0
POSITIONS_AT_ONCE, REQUESTS_AT_ONCE = 1024, 64
"""Of paced rides: about two and a half minutes of either."""


class Rides:
    """The input of some hours, as files, and what the query answers.

    The first hours of the real data where they are given, else generated ones.
    """

    def __init__(self, folder: Path) -> None:
        """Take those in `folder`; if there are none yet, `make` them."""
        self.folder = folder
        self.positions = folder / "positions.parquet"
        self.requests = folder / "requests.parquet"
        self._answers = folder / "answers.parquet"

    def make(self, hours: int) -> Rides:
        """Make rides of so many hours, and ask the query."""
        self._make_input(hours)
        pq.write_table(duckdb_oracle(self.positions, self.requests), self._answers)
        return self

    @property
    def expected(self) -> pa.Table:
        """What the query answers."""
        return pq.ParquetFile(self._answers).read()  # `read_table` would import pandas

    def _make_input(self, hours: int) -> None:
        data = os.environ.get("WHALE_RAY_DATA")
        if not data:
            made = generate(self.folder / "generated", CabGeneratorSettings(hours=hours))
            made.positions_path.rename(self.positions)
            made.requests_path.rename(self.requests)
            return
        positions = _within(Path(data, "sf_taxi_gps.parquet"), "event_time", None, hours)
        pq.write_table(positions, self.positions)
        times = pc.min_max(positions["event_time"])
        requests = _within(Path(data, "sf_taxi_requests.parquet"), "request_time", times, hours)
        pq.write_table(requests, self.requests)

    def topology(self, *, paced: bool = False) -> whale.Topology:
        """Return the application on these rides, with results for the caller.

        With `paced` it takes some seconds per hour on a fast machine, too, and requests come in
        small portions all the while.
        """
        positions: Source = whale.sources.parquet(self.positions)
        requests: Source = whale.sources.parquet(self.requests)
        if paced:
            positions = Paced(positions, POSITIONS_PER_S, POSITIONS_AT_ONCE)
            requests = Paced(requests, POSITIONS_PER_S, REQUESTS_AT_ONCE)
        return build(
            positions,
            requests,
            whale.sinks.collect(),
            RideHailingSettings(matching_instances=16),
        )


class Paced(Source):
    """Another source, of which an instance reads so many rows a second, and so many at once."""

    def __init__(self, source: Source, rows_per_s: float, rows_at_once: int) -> None:
        self._source = source
        self._rows_per_s = rows_per_s
        self._rows_at_once = rows_at_once

    def schema(self) -> Schema | None:
        return self._source.schema()

    def open(self, context: InstanceContext) -> SourceReader:
        reader = self._source.open(context)
        return _PacedReader(reader, context.clock, self._rows_per_s, self._rows_at_once)

    def describe(self) -> str:
        return f"{self._source.describe()}, {self._rows_per_s:,g} rows/s"


class _PacedReader(SourceReader):
    def __init__(
        self, reader: SourceReader, clock: Clock, rows_per_s: float, rows_at_once: int
    ) -> None:
        self._reader = reader
        self._clock = clock
        self._ns_per_row = 1e9 / rows_per_s
        self._rows_at_once = rows_at_once
        self._next_ns = clock.monotonic_ns()

    def read(self, max_rows: int) -> Batch | None:
        if self._clock.monotonic_ns() < self._next_ns:
            return None
        batch = self._reader.read(min(max_rows, self._rows_at_once))
        if batch is not None:
            self._next_ns += int(batch.num_rows * self._ns_per_row)
        return batch

    @property
    def finished(self) -> bool:
        return self._reader.finished

    def next_ready_ns(self) -> int:
        return self._next_ns

    def close(self) -> None:
        self._reader.close()


def _within(path: Path, column: str, span: pa.Scalar | None, hours: int) -> pa.Table:
    """Return the rows of the first hours, or those within `span` (min and max)."""
    table = pq.read_table(path)
    ms = table[column].cast(pa.timestamp("ms", "UTC")).cast(pa.int64())
    low = pc.min(ms) if span is None else span["min"].cast(pa.int64())
    high = pc.add(low, hours * HOUR_MS) if span is None else span["max"].cast(pa.int64())
    return table.filter(pc.and_(pc.greater_equal(ms, low), pc.less_equal(ms, high)))


def main() -> None:
    """Make the rides, and let the application find their answers."""
    from whale_ray.worker import worker  # noqa: F401  (compiles kernels)

    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    rides = Rides(folder).make(int(sys.argv[2]))
    codec.warm_up()
    job = whale.run(rides.topology())
    assert_equal_answers(job.results("out").to_arrow(), rides.expected)


if __name__ == "__main__":
    main()
