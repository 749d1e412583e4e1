"""Topologies in a user's file that go on until somebody ends them; they tell that rows flow."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from typing import Any

import whale_ray as whale


class Tell(whale.Process):
    def open(self, context: Any) -> None:
        self.told = False

    def on_batch(self, batch: whale.Batch, out: Any) -> None:
        out.emit({"v": batch["v"].copy()})
        if not self.told:
            self.told = True
            sys.stderr.write("flowing\n")
            sys.stderr.flush()


class Stuck(Tell):
    def on_batch(self, batch: whale.Batch, out: Any) -> None:
        super().on_batch(batch, out)
        threading.Event().wait()


def numbers() -> Iterator[dict[str, Any]]:
    return ({"v": i} for i in range(sys.maxsize))


def build(process: type[whale.Process]) -> whale.Topology:
    made = whale.Topology("endless")
    source = made.source(whale.sources.iterable(numbers, bounded=True), id="numbers")
    told = source.shuffle().process(process, id="tell", parallelism=2)
    told.sink(whale.sinks.parquet("out"), id="out")
    return made


topology = build(Tell)
stuck = build(Stuck)
