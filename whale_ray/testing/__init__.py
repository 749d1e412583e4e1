"""Tools for tests of topologies, operators, sources and sinks.

Run a topology on given rows in this process::

    import whale_ray as whale
    from whale_ray.testing import CollectingSink, ListSource

    def test_keeps_large_values() -> None:
        result = CollectingSink()
        topology = whale.Topology("test")
        rows = topology.source(ListSource([{"x": 1}, {"x": 20}]), id="rows")
        rows.filter(whale.col("x") > 10, id="large").sink(result, id="out")
        whale.run(topology)
        assert result.rows == [{"x": 20}]

`read_all` and `write_all` drive a source or a sink of your own without a topology; `check_source`
and `check_sink` check that it fulfils the contract of its base class, `check_merge` that parts of
an aggregate of your own can be merged in any order, `check_dump` that state of your own can be
moved to other instances. `VirtualClock` is a clock that only tests advance.
"""

from ..transport.clock import VirtualClock
from .collecting_sink import CollectingSink
from .conformance import ContractError
from .driving import instance_context, read_all, write_all
from .dump_check import check_dump
from .list_source import Abort, AbortError, EndOfInput, ListSource, Pause
from .merge_check import check_merge
from .sink_contract import check_sink
from .source_contract import check_source

__all__ = [
    "Abort",
    "AbortError",
    "CollectingSink",
    "ContractError",
    "EndOfInput",
    "ListSource",
    "Pause",
    "VirtualClock",
    "check_dump",
    "check_merge",
    "check_sink",
    "check_source",
    "instance_context",
    "read_all",
    "write_all",
]
