"""What a workload is, and the streams that it reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from ....applications.nexmark.inputs import Inputs
from ....applications.slash_nexmark.queries import AuctionSite
from .inputs import (
    AT_SAME_RATE,
    MAX_OUT_OF_ORDER_MS,
    bound_ms,
    event_time_of,
    event_time_unit_of,
    stream_path,
)
from .mapped_files import Files, arrow_path

if TYPE_CHECKING:
    from ....api.topology import Stream, Topology

__all__ = ["FileStreams", "Part", "Workload"]

Part: TypeAlias = Literal["keyed", "windows", "nexmark", "slash", "yahoo", "applications"]


@dataclass(frozen=True)
class Workload:
    """One workload.

    Attributes:
        name: as the report has it.
        part: that of the suite which it belongs to.
        reads: the streams and their columns: the key first, then, if it is timed, the event time.
        build: adds it to the topology of the streams.
        sql: the same for DuckDB, over the streams' names and `ads`; `bids` has `file_row_number`.
        total: the column of the results that `Answer` adds up.
        key: the column by which state is kept, of the first stream; or `campaign_id`; None if it is
            computed, so that its values are not counted.
        timed: whether it needs event time; else rows are taken as they come.
        window_s: how long a row counts; None: for ever.
        drops: whether it has a result for every row: then they are only counted and added up.
        joins: whether it has no aggregate that could be merged late.
    """

    name: str
    part: Part
    reads: Mapping[str, tuple[str, ...]]
    build: Callable[[FileStreams], Stream]
    sql: str
    total: str
    key: str | None
    timed: bool = True
    window_s: int | None = 10
    drops: bool = False
    joins: bool = False


class FileStreams(Inputs):
    """The streams of a folder, with the columns that a workload reads.

    Args:
        topology: receives the sources.
        workload: what reads them.
        folder: has a file of each stream.
        max_out_of_order_ms: of the streams of NEXMark.
        on_late: of the sources.
        instances: how many share each file.
        files: which to read.
    """

    def __init__(
        self,
        topology: Topology,
        workload: Workload,
        folder: Path,
        *,
        max_out_of_order_ms: int = MAX_OUT_OF_ORDER_MS,
        on_late: Literal["fail", "drop", "pass"] = "fail",
        instances: int = 1,
        files: Files = "parquet",
    ) -> None:
        self.parallelism = None
        self.folder = folder
        self._topology = topology
        self._workload = workload
        self._max_out_of_order_ms = max_out_of_order_ms
        self._on_late: Literal["fail", "drop", "pass"] = on_late
        self._instances = instances
        self._files: Files = files

    def events(self) -> Stream:
        """Read Yahoo's events."""
        return self._stream("events", ())

    def read(self, name: str) -> Stream:
        """Read the stream of an application."""
        return self._stream(name, ())

    def auction_site(self) -> AuctionSite:
        """Return the streams of Slash's NEXMark, as its queries want them."""
        return _SlashStreams(self._topology, self._stream)

    def _stream(self, name: str, columns: tuple[str, ...]) -> Stream:
        from .... import sources

        name = name if name in self._workload.reads else f"{name}_{AT_SAME_RATE}"
        timed, columns = self._workload.timed, self._workload.reads[name]
        bounded = timed and bound_ms(name) > 0
        source = (
            sources.parquet(stream_path(self.folder, name), columns=columns)
            if self._files == "parquet"
            else sources.ipc(arrow_path(self.folder, name, self._files), columns=columns)
        )
        return self._topology.source(
            source,
            id=name,
            event_time=event_time_of(name) if timed else None,
            event_time_unit=event_time_unit_of(name) if timed else None,
            max_out_of_order_ms=self._max_out_of_order_ms if bounded else 0,
            on_late=self._on_late,
            parallelism=self._instances,
        )


class _SlashStreams(AuctionSite):
    """The streams that are called `nb_…` here."""

    def __init__(
        self, topology: Topology, stream_of: Callable[[str, tuple[str, ...]], Stream]
    ) -> None:
        self._topology = topology
        self._stream_of = stream_of
        self.parallelism = None

    def read(self, name: str, *columns: str) -> Stream:
        """See `AuctionSite.read`."""
        return self._stream_of(f"nb_{name}", columns)
