"""Two topologies in a user's file: fares per cab, with a module of theirs; and one that fails."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tariffs import fare_cents

import whale_ray as whale


class Total(whale.Process):
    def open(self, context: Any) -> None:
        self.cents: dict[str, int] = {}

    def on_row(self, row: Any, out: Any) -> None:
        self.cents[row.cab] = self.cents.get(row.cab, 0) + fare_cents(row.km)

    def close(self, out: Any) -> None:
        out.emit_rows([{"cab": cab, "cents": cents} for cab, cents in self.cents.items()])


def trips() -> Iterator[dict[str, Any]]:
    return ({"cab": f"cab{i % 7}", "km": i} for i in range(500))


def no_such_fare(row: Any) -> dict[str, Any]:
    return {"fare": {}[row.cab]}


def build(sink: Any) -> whale.Topology:
    made = whale.Topology("mileage")
    odd = made.source(whale.sources.iterable(trips), id="trips").filter(whale.col("km") % 2 == 1)
    odd.key_by("cab").process(Total, id="total", parallelism=3).sink(sink, id="out")
    return made


topology = build(whale.sinks.parquet("out"))

failing = whale.Topology("failing")
failing.source(whale.sources.iterable(trips), id="trips").map(no_such_fare, id="fares").sink(
    whale.sinks.collect(), id="out"
)
