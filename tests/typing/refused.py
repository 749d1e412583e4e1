"""What a user must not write. Each line carries the complaint that a type checker has to make.

An ignored complaint that is not made is an error itself, so nothing here may quietly become legal.
Never run.
"""

from __future__ import annotations

from typing import Any

import whale_ray as whale


class Count(whale.Process):
    """One input."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_batch(self, batch: whale.Batch, out: whale.Output) -> None:
        pass


class Match(whale.CoProcess):
    """Two inputs."""


def two(left: Any, right: Any) -> dict[str, Any]:
    """Take too many arguments."""
    return {}


def mistakes(topology: whale.Topology, stream: whale.Stream) -> None:
    """Make one mistake a line."""
    topology.source("gps/")  # type: ignore[arg-type] # a path is no source
    topology.source(whale.sinks.collect())  # type: ignore[arg-type] # a sink is no source
    topology.source(whale.sources.parquet("a"), on_late="skip")  # type: ignore[arg-type] # choices
    stream.process(lambda: Count(1))  # type: ignore[attr-defined] # not grouped
    stream.connect(stream.broadcast())  # type: ignore[attr-defined] # not grouped
    stream.broadcast().broadcast()  # type: ignore[attr-defined] # grouped twice
    stream.shuffle().key_by("a")  # type: ignore[attr-defined] # grouped twice
    stream.shuffle().connect(stream)  # type: ignore[arg-type] # the right side is not grouped
    stream.shuffle().process(Count)  # type: ignore[arg-type] # its step is missing
    stream.shuffle().process(Count(1))  # type: ignore[arg-type] # an object, not a class
    stream.shuffle().process(Match)  # type: ignore[arg-type] # takes two inputs
    both = stream.shuffle().connect(stream.broadcast())
    both.map(dict)  # type: ignore[attr-defined] # process them first
    stream.map(two)  # type: ignore[arg-type] # of two arguments
    stream.map(whale.col("a"))  # type: ignore[arg-type] # an expression is for select
    stream.select(3)  # type: ignore[arg-type] # no column
    stream.sink(whale.sources.parquet("a"))  # type: ignore[arg-type] # a source is no sink
    stream.sink(whale.sinks.collect()).map(dict)  # type: ignore[attr-defined] # nothing follows
    stream.via("tcp")  # type: ignore[arg-type] # no transport
    whale.transports.Transport("x", Count, Count)  # type: ignore[arg-type] # no operators
    stream.map(dict, "name")  # type: ignore[call-arg] # id= is named
