"""The builder: `Topology` and its streams.

`builder` has `Topology`, and `streams` the methods that add operators; both store the operators in
a `registry`. The other modules each check one kind of argument: `endpoints` (sources and sinks),
`transforms` (functions and expressions), `processes`. `misuse` has the messages for methods that
are called on an object that does not have them.
"""

from .aggregations import GroupedRows
from .builder import Topology
from .functions import ColumnFunction, columns
from .grouped import ConnectedStream, GroupedStream
from .sink_handle import SinkHandle
from .streams import Stream

__all__ = [
    "ColumnFunction",
    "ConnectedStream",
    "GroupedRows",
    "GroupedStream",
    "SinkHandle",
    "Stream",
    "Topology",
    "columns",
]
