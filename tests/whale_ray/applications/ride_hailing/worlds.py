"""Drives the matcher and the choice of the best without a runtime, and answers by brute force."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tests.whale_ray.applications.emitted import Emitted, context
from whale_ray.applications.ride_hailing.best import BestVehicle
from whale_ray.applications.ride_hailing.matcher import VehicleMatcher
from whale_ray.applications.ride_hailing.settings import RideHailingSettings
from whale_ray.state.keys import hash_keys, virtual_node_of
from whale_ray.state.owners import Owners
from whale_ray.transport.wire.batch import Batch

EARTH_RADIUS_M = 6_371_008.8
VIRTUAL_NODES = 1024

POSITIONS = pa.schema(
    [
        ("vehicle_id", pa.string()),
        ("event_time", pa.timestamp("ms", tz="UTC")),
        ("lat_e5", pa.int32()),
        ("lon_e5", pa.int32()),
        ("occupied", pa.bool_()),
    ]
)
REQUESTS = pa.schema(
    [
        ("request_id", pa.int32()),
        ("request_time", pa.timestamp("ms", tz="UTC")),
        ("pickup_lat", pa.float32()),
        ("pickup_lon", pa.float32()),
    ]
)


def timed(table: pa.Table, column: str) -> Batch:
    """Return a table as a source would hand it on: with event times."""
    names = [name for name in table.column_names if name in (*POSITIONS.names, *REQUESTS.names)]
    batch = Batch.from_arrow(table.select(names))
    unit_ns = {"ms": 10**6, "us": 10**3}[table.schema.field(column).type.unit]
    return batch.with_times(batch[column].astype(np.int64) * unit_ns)


def plain(table: pa.Table) -> pa.Table:
    """Return a table without dictionaries, as a source reads it."""
    for index, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type):
            table = table.set_column(index, field.name, table[field.name].cast(pa.string()))
    return table


def merged_steps(left: Batch, right: Batch, rows: int) -> Iterator[tuple[Batch, Batch, np.ndarray]]:
    """Merge two batches by event time, left first, and cut every so many rows."""
    times = np.concatenate([left.times, right.times])
    order = np.argsort(times, kind="stable") >= left.num_rows
    taken = [0, 0]
    for start in range(0, len(order), rows):
        step = order[start : start + rows]
        from_right = int(step.sum())
        ends = [taken[0] + len(step) - from_right, taken[1] + from_right]
        yield left.slice(taken[0], ends[0]), right.slice(taken[1], ends[1]), step
        taken = ends


def candidates(
    positions: Batch,
    requests: Batch,
    settings: RideHailingSettings,
    *,
    instances: int = 1,
    workers: int = 1,
    rows: int = 8192,
) -> list[Batch]:
    """Return what `instances` matching instances on `workers` workers emit, per worker."""
    nodes = virtual_node_of(hash_keys(positions, ("vehicle_id",))[0], VIRTUAL_NODES)
    owners = Owners.even(VIRTUAL_NODES, instances).of(nodes)
    emitted = []
    for worker in range(workers):
        local = [i for i in range(instances) if i * workers // instances == worker]
        if not local:
            continue
        matcher, out = VehicleMatcher(settings), Emitted()
        matcher.open(context(local, instances))
        mine = positions.filter(np.isin(owners, local))
        for left, right, order in merged_steps(mine, requests, rows):
            matcher.on_merged(left, right, order, out)
        matcher.close(out)
        emitted.append(Batch.concat(out.batches) if out.batches else None)
    return [batch for batch in emitted if batch is not None]


def best(found: list[Batch], rows: int = 8192) -> pa.Table:
    """Return the best row per request, ordered by time and id."""
    merged = Batch.concat(found)
    merged = merged.take(np.argsort(merged.times, kind="stable"))
    chooser, out = BestVehicle(), Emitted()
    chooser.open(context([0], 1))
    start = 0
    while start < merged.num_rows:  # rows of one event time are never apart
        last = min(start + rows, merged.num_rows) - 1
        stop = int(np.searchsorted(merged.times, merged.times[last], side="right"))
        chooser.on_batch(merged.slice(start, stop), out)
        start = stop
    table = pa.Table.from_batches([batch.to_arrow() for batch in out.batches])
    return table.sort_by([("request_time", "ascending"), ("request_id", "ascending")])


def haversine_m(lat: float, lon: float, other_lat: float, other_lon: float) -> float:
    """Return the distance of two places in degrees, written down once more."""
    phi, other_phi = math.radians(lat), math.radians(other_lat)
    a = math.sin((phi - other_phi) / 2) ** 2
    a += math.cos(phi) * math.cos(other_phi) * math.sin(math.radians(lon - other_lon) / 2) ** 2
    return 2 * EARTH_RADIUS_M * math.asin(min(1.0, math.sqrt(a)))


@dataclass
class RideWorld:
    """A few positions and requests, each list in the order of time."""

    positions: list[tuple[str, int, int, int, bool]]
    requests: list[tuple[int, int, float, float]]

    def tables(self) -> tuple[pa.Table, pa.Table]:
        return tuple(
            pa.Table.from_arrays(
                [
                    pa.array(column, field.type)
                    for column, field in zip(columns, schema, strict=True)
                ],
                schema=schema,
            )
            for rows, schema in ((self.positions, POSITIONS), (self.requests, REQUESTS))
            for columns in [list(zip(*rows, strict=True)) or [[] for _ in schema]]
        )

    def batches(self) -> tuple[Batch, Batch]:
        positions, requests = self.tables()
        return timed(positions, "event_time"), timed(requests, "request_time")

    def found(self, settings: RideHailingSettings) -> dict[int, dict[str, float]]:
        """Return request id → vehicle → distance, by looking at everything."""
        answers = {}
        for request_id, asked_ms, lat, lon in self.requests:
            last = {fix[0]: fix for fix in self.positions if fix[1] <= asked_ms}
            answers[request_id] = {
                vehicle: distance
                for vehicle, fixed_ms, lat_e5, lon_e5, occupied in last.values()
                if not occupied
                and asked_ms - fixed_ms <= settings.max_age_s * 1000
                and (
                    distance := haversine_m(
                        float(np.float32(lat)), float(np.float32(lon)), lat_e5 / 1e5, lon_e5 / 1e5
                    )
                )
                <= settings.radius_m
            }
        return answers

    def best(self, settings: RideHailingSettings) -> dict[int, tuple[str | None, float | None]]:
        answers = {}
        for request_id, found in self.found(settings).items():
            ranked = sorted(
                found.items(),
                key=lambda item: (math.floor(item[1] * 1000 + 0.5), item[0].encode()),
            )
            answers[request_id] = ranked[0] if ranked else (None, None)
        return answers
