"""What tests of topologies, operators, sources and sinks need.

A topology fed with rows, run in this process::

    import whale_ray as whale
    from whale_ray.testing import CollectingSink, ListSource

    def test_keeps_large_values() -> None:
        result = CollectingSink()
        topology = whale.Topology("test")
        rows = topology.source(ListSource([{"x": 1}, {"x": 20}]), id="rows")
        rows.filter(whale.col("x") > 10, id="large").sink(result, id="out")
        whale.run(topology)
        assert result.rows == [{"x": 20}]

A source or a sink of one's own, without any topology: `read_all` and `write_all`; whether it keeps
what its base class promises: `check_source` and `check_sink`. Time in tests is turned by hand:
`VirtualClock`.
"""

from ..transport.clock import VirtualClock
from .collecting_sink import CollectingSink
from .conformance import ContractError
from .driving import instance_context, read_all, write_all
from .list_source import Abort, AbortError, EndOfInput, ListSource, Pause
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
    "check_sink",
    "check_source",
    "instance_context",
    "read_all",
    "write_all",
]
