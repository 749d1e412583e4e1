"""whale-ray: one-to-many stream processing on Ray, for people who write Python and Spark.

::

    import whale_ray as whale

    topology = whale.Topology("speeding")
    trips = topology.source(whale.sources.parquet("trips/"), id="trips")
    fast = trips.filter(whale.col("speed") > 120, id="fast")
    fast.sink(whale.sinks.parquet("fast/"), id="out")

    print(topology.explain())  # what would run where; starts nothing
    job = whale.run(topology)  # in this process; whale.submit(topology) runs it on Ray

Every name below is imported when it is first used, so that importing whale-ray costs next to
nothing and needs none of what a job needs (numba, Ray, Spark, pandas).
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # known to type checkers; loading `typing` would take longest of all this
if TYPE_CHECKING:
    from typing import Any

    from . import errors, functions, sinks, sources, state, testing, transports
    from .api.attaching import attach
    from .api.job import Job
    from .api.state_reading import read_state
    from .api.submission import resume, run, submit
    from .api.topology import (
        ConnectedStream,
        GroupedRows,
        GroupedStream,
        SinkHandle,
        Stream,
        Topology,
        columns,
    )
    from .configs.loading import load_settings
    from .configs.settings import Settings
    from .operators.aggregates.user_defined import AggregateFunction
    from .operators.expressions.expression import Expression, col, lit, when
    from .operators.joins.interval import interval
    from .operators.keyed.keyed_co_process import KeyedCoProcess
    from .operators.keyed.keyed_process import KeyedProcess, compiled
    from .operators.process import CoProcess, InstanceContext, Output, Process
    from .operators.rows import Row
    from .operators.windows.specifications import (
        count_window,
        processing_time,
        session_window,
        window,
    )
    from .plan.explanation import Explanation
    from .transport.wire.batch import Batch
    from .transport.wire.types import Schema

    __version__: str

__all__ = [
    "AggregateFunction",
    "Batch",
    "CoProcess",
    "ConnectedStream",
    "Explanation",
    "Expression",
    "GroupedRows",
    "GroupedStream",
    "InstanceContext",
    "Job",
    "KeyedCoProcess",
    "KeyedProcess",
    "Output",
    "Process",
    "Row",
    "Schema",
    "Settings",
    "SinkHandle",
    "Stream",
    "Topology",
    "__version__",
    "attach",
    "col",
    "columns",
    "compiled",
    "count_window",
    "errors",
    "functions",
    "interval",
    "lit",
    "load_settings",
    "processing_time",
    "read_state",
    "resume",
    "run",
    "session_window",
    "sinks",
    "sources",
    "state",
    "submit",
    "testing",
    "transports",
    "when",
    "window",
]

_NAMESPACES = frozenset(
    {"errors", "functions", "sinks", "sources", "state", "testing", "transports"}
)

_HOMES = {
    "AggregateFunction": "operators.aggregates.user_defined",
    "Batch": "transport.wire.batch",
    "CoProcess": "operators.process",
    "ConnectedStream": "api.topology",
    "Explanation": "plan.explanation",
    "Expression": "operators.expressions.expression",
    "GroupedRows": "api.topology",
    "GroupedStream": "api.topology",
    "InstanceContext": "operators.process",
    "Job": "api.job",
    "KeyedCoProcess": "operators.keyed.keyed_co_process",
    "KeyedProcess": "operators.keyed.keyed_process",
    "Output": "operators.process",
    "Process": "operators.process",
    "Row": "operators.rows",
    "Schema": "transport.wire.types",
    "Settings": "configs.settings",
    "SinkHandle": "api.topology",
    "Stream": "api.topology",
    "Topology": "api.topology",
    "attach": "api.attaching",
    "col": "operators.expressions.expression",
    "columns": "api.topology",
    "compiled": "operators.keyed.keyed_process",
    "count_window": "operators.windows.specifications",
    "interval": "operators.joins.interval",
    "lit": "operators.expressions.expression",
    "load_settings": "configs.loading",
    "processing_time": "operators.windows.specifications",
    "read_state": "api.state_reading",
    "resume": "api.submission",
    "run": "api.submission",
    "session_window": "operators.windows.specifications",
    "submit": "api.submission",
    "when": "operators.expressions.expression",
    "window": "operators.windows.specifications",
}
"""The module of every public name."""


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used (PEP 562)."""
    if name in _NAMESPACES:
        return import_module(f".{name}", __name__)
    if name == "__version__":
        from importlib.metadata import version

        value: Any = version("whale-ray")
    elif name in _HOMES:
        value = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    else:
        from difflib import get_close_matches

        near = get_close_matches(name, __all__, n=1)
        hint = f": did you mean {near[0]!r}?" if near else ""
        msg = f"module {__name__!r} has no attribute {name!r}{hint}"
        raise AttributeError(msg)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
