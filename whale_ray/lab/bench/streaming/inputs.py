"""The input: the streams of the applications in Parquet files, Slash's NEXMark as `nb_…`.

All systems read these. Times are whole milliseconds, the resolution of Flink's event time, in
columns of microseconds; those of Linear Road are whole seconds in a column of numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ....applications.nexmark import generator as nexmark
from ....applications.nexmark.settings import MAX_OUT_OF_ORDER_MS, NexmarkSettings
from ....applications.slash_nexmark import generator as slash
from ....applications.slash_nexmark.schemas import SCHEMAS as SLASH_SCHEMAS
from ....applications.slash_nexmark.settings import SlashNexmarkSettings
from ....applications.yahoo import generator as yahoo
from ....applications.yahoo.settings import YahooSettings
from .application_streams import EVENT_TIMES, SECONDS, application_streams, in_milliseconds

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa

__all__ = [
    "ADS",
    "AT_SAME_RATE",
    "MAX_OUT_OF_ORDER_MS",
    "InputFiles",
    "bound_ms",
    "campaigns_by_ad",
    "event_time_of",
    "event_time_unit_of",
    "most_keys",
    "stream_path",
    "write_applications",
    "write_inputs",
    "write_skewed",
]

ADS = "ads"
"""The table of Yahoo's advertisements, a file beside the streams."""

AT_SAME_RATE = "of_bids"
"""Ends the name of the stream of auctions that come while the bids do, three for 46 of these."""

_ROW_GROUP = 1 << 16
_SORTED_AT_ONCE = 1 << 20
_EVENTS = "events"
_EVENTS_PER_S = 10_000
"""Of Yahoo's: at the rate of NEXMark's a window has some 330 views of each campaign."""
_RARER = 10
"""Of 50 events one is a person and three are auctions: as many events more for their files."""


@dataclass(frozen=True, slots=True)
class InputFiles:
    """The files, `STREAM.parquet` in a folder.

    Attributes:
        folder: all streams; NEXMark's as generated: a tenth arrives late, by up to 3 s.
        in_order: a folder with the same bids by event time; `folder` where there are none.
        rows: how many each stream has.
    """

    folder: Path
    in_order: Path
    rows: Mapping[str, int]


def stream_path(folder: Path, stream: str) -> Path:
    """Return the file of a stream."""
    return folder / f"{stream}.parquet"


def bound_ms(stream: str) -> int:
    """Return by how much a row of a stream may be behind the ones before it."""
    in_order = stream == _EVENTS or stream in EVENT_TIMES or stream.startswith("nb_")
    return 0 if in_order else MAX_OUT_OF_ORDER_MS


def event_time_of(stream: str) -> str:
    """Return the name of a stream's column of event times."""
    return EVENT_TIMES.get(stream, "event_time" if stream == _EVENTS else "date_time")


def event_time_unit_of(stream: str) -> Literal["s"] | None:
    """Return the unit of a stream's event times; None if they are timestamps."""
    return "s" if stream in SECONDS else None


def write_inputs(
    folder: Path, events: int, columns: Mapping[str, Sequence[str]] | None = None
) -> InputFiles:
    """Write the files, part by part: it takes the memory of some 500,000 events.

    Args:
        folder: where to.
        events: of NEXMark's, 10,000 a second, 46 of 50 are bids; persons and auctions are those of
            ten times as many, `auctions_of_bids` those of the same. Slash's are as many, at the
            same rate: of 9 a seller, 4 auctions and 4 bids. Yahoo's are as many, at the same rate.
        columns: of the streams that are to be written; all of all of them by default.
    """
    import pyarrow.parquet as pq

    tables = {
        "bids": _nexmark_tables("bids", events),
        "persons": _nexmark_tables("persons", events * _RARER),
        "auctions": _nexmark_tables("auctions", events * _RARER),
        f"auctions_{AT_SAME_RATE}": _nexmark_tables("auctions", events),
        **_skewable(events, 0.0),
    }
    in_order = folder / "in-order"
    in_order.mkdir(parents=True)
    rows = {}
    for name, parts in tables.items():
        if columns is None:
            rows[name] = _write(parts, stream_path(folder, name))
        elif name in columns:
            rows[name] = _write(_selected(parts, columns[name]), stream_path(folder, name))
    if "bids" in rows:
        _write(_by_time(stream_path(folder, "bids")), stream_path(in_order, "bids"))
    pq.write_table(yahoo.ads_table(YahooSettings()), stream_path(folder, ADS))
    return InputFiles(folder, in_order, rows)


def write_skewed(folder: Path, events: int, zipf: float) -> InputFiles:
    """Write the events of Yahoo and the streams of Slash's NEXMark, with skewed keys.

    Args:
        folder: where to.
        events: of Yahoo's, and of Slash's NEXMark; see `write_inputs`.
        zipf: exponent of the distribution of advertisements and of sellers.
    """
    import pyarrow.parquet as pq

    folder.mkdir(parents=True)
    rows = {
        name: _write(parts, stream_path(folder, name))
        for name, parts in _skewable(events, zipf).items()
    }
    pq.write_table(yahoo.ads_table(YahooSettings()), stream_path(folder, ADS))
    return InputFiles(folder, folder, rows)


def write_applications(folder: Path, events: int) -> InputFiles:
    """Write the streams of the other applications; see `application_streams`."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = {
        name: _write(parts, stream_path(folder, name))
        for name, parts in application_streams(events).items()
    }
    return InputFiles(folder, folder, rows)


def campaigns_by_ad(folder: Path) -> dict[str, str]:
    """Return the campaign of each of Yahoo's advertisements."""
    import pyarrow.parquet as pq

    ads = pq.read_table(stream_path(folder, ADS)).to_pydict()
    return dict(zip(ads["ad_id"], ads["campaign_id"], strict=True))


def most_keys(folder: Path, stream: str, key: str, window_s: int | None) -> int:
    """Return how many keys a stream has; with `window_s` the most in any window of that length.

    The key may be a column of the stream, or `campaign_id`, that of the event's advertisement.
    """
    import pyarrow.parquet as pq

    time = event_time_of(stream)
    column = "ad_id" if key == "campaign_id" else key
    table = pq.read_table(stream_path(folder, stream), columns=[column, time])
    keys = table[column].to_numpy()
    if key == "campaign_id":
        by_ad = campaigns_by_ad(folder)
        keys = np.array([by_ad[ad] for ad in keys])
    _, numbers = np.unique(keys, return_inverse=True)
    if window_s is None:
        return int(numbers.max()) + 1
    windows = table[time].to_numpy().astype(np.int64) // (window_s * 1_000_000)
    return int(_distinct_by_group(windows, numbers).max())


def _distinct_by_group(
    groups: npt.NDArray[np.int64], values: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Return how many distinct values each group has."""
    pairs = np.unique(np.stack([groups, values]), axis=1)
    return np.unique(pairs[0], return_counts=True)[1]


def _skewable(events: int, zipf: float) -> dict[str, Iterator[pa.Table]]:
    """Return the streams whose keys may be skewed."""
    settings = SlashNexmarkSettings(events=events, zipf=zipf)
    found = {
        f"nb_{name}": in_milliseconds(slash.tables(name, settings), "date_time")
        for name in SLASH_SCHEMAS
    }
    return {_EVENTS: _yahoo_tables(events, zipf), **found}


def _nexmark_tables(stream: str, events: int) -> Iterator[pa.Table]:
    return in_milliseconds(nexmark.tables(stream, NexmarkSettings(events=events)), "date_time")


def _yahoo_tables(events: int, zipf: float) -> Iterator[pa.Table]:
    import pyarrow as pa

    settings = YahooSettings(events=events, events_per_s=_EVENTS_PER_S, zipf=zipf)
    for table in yahoo.event_tables(settings):
        times = table["event_time"].cast(pa.timestamp("us"))
        yield table.set_column(table.schema.get_field_index("event_time"), "event_time", times)


def _selected(tables: Iterable[pa.Table], columns: Sequence[str]) -> Iterator[pa.Table]:
    for table in tables:
        yield table.select(list(columns))


def _by_time(path: Path) -> Iterator[pa.Table]:
    """Yield the rows of a file by event time, those of one time as the file has them."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    late = pa.scalar(MAX_OUT_OF_ORDER_MS * 1_000, pa.duration("us"))
    waiting: pa.Table | None = None
    for batch in pq.ParquetFile(path).iter_batches(_SORTED_AT_ONCE):
        read = pa.Table.from_batches([batch])
        found = read if waiting is None else pa.concat_tables([waiting, read])
        found = found.sort_by("date_time")
        times: Any = found["date_time"]
        is_due = pc.less(times, pc.subtract(times[-1], late))
        due = pc.sum(is_due).as_py() or 0
        yield found.slice(0, due)
        waiting = found.slice(due)
    if waiting is not None:
        yield waiting


def _write(tables: Iterable[pa.Table], path: Path) -> int:
    """Write a file of whole row groups; return how many rows it has."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = 0
    with ExitStack() as stack:
        writer: pq.ParquetWriter | None = None
        waiting: list[pa.Table] = []
        for table in tables:
            if writer is None:
                writer = stack.enter_context(
                    pq.ParquetWriter(path, table.schema, compression="lz4")
                )
            rows += table.num_rows
            found = pa.concat_tables([*waiting, table])
            whole = found.num_rows // _ROW_GROUP * _ROW_GROUP
            if whole:
                writer.write_table(found.slice(0, whole), row_group_size=_ROW_GROUP)
            waiting = [found.slice(whole)]
        if writer is not None:
            writer.write_table(pa.concat_tables(waiting), row_group_size=_ROW_GROUP)
    return rows
