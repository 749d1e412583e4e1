"""The builder: a topology, its streams, and what a user may pass to them.

`builder` is where it begins and `streams` are the verbs; both keep their operators in `registry`.
The other modules each find the mistakes of one kind of argument: `endpoints` (sources and sinks),
`transforms` (functions and expressions), `processes`; `misuse` words a method called out of place.
"""

from .builder import Topology
from .functions import ColumnFunction, columns
from .grouped import ConnectedStream, GroupedStream
from .sink_handle import SinkHandle
from .streams import Stream

__all__ = [
    "ColumnFunction",
    "ConnectedStream",
    "GroupedStream",
    "SinkHandle",
    "Stream",
    "Topology",
    "columns",
]
