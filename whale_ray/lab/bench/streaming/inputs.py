"""The input: NEXMark's three streams and Yahoo's events in Parquet files, which all systems read.

Times are whole milliseconds, the resolution of Flink's event time, in columns of microseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ....applications.nexmark import generator as nexmark
from ....applications.nexmark.settings import MAX_OUT_OF_ORDER_MS, NexmarkSettings
from ....applications.yahoo import generator as yahoo
from ....applications.yahoo.settings import YahooSettings

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa

__all__ = [
    "ADS",
    "MAX_OUT_OF_ORDER_MS",
    "InputFiles",
    "campaigns_by_ad",
    "event_time_of",
    "most_keys",
    "stream_path",
    "write_inputs",
]

ADS = "ads"
"""The table of Yahoo's advertisements, a file beside the streams."""

_ROW_GROUP = 1 << 16
_EVENTS = "events"
_RARER = 10
"""Of 50 events one is a person and three are auctions: as many events more for their files."""


@dataclass(frozen=True, slots=True)
class InputFiles:
    """The files, `STREAM.parquet` in a folder.

    Attributes:
        folder: all streams; NEXMark's as generated: a tenth arrives late, by up to 3 s.
        in_order: a folder with the same bids by event time.
        rows: how many each stream has.
    """

    folder: Path
    in_order: Path
    rows: Mapping[str, int]


def stream_path(folder: Path, stream: str) -> Path:
    """Return the file of a stream."""
    return folder / f"{stream}.parquet"


def event_time_of(stream: str) -> str:
    """Return the name of a stream's column of event times."""
    return "event_time" if stream == _EVENTS else "date_time"


def write_inputs(folder: Path, events: int) -> InputFiles:
    """Write the files.

    Args:
        folder: where to.
        events: of NEXMark's, 10,000 a second, 46 of 50 are bids; persons and auctions are those of
            ten times as many. Yahoo's are as many, one every 10 ms.
    """
    import pyarrow.parquet as pq

    tables = {
        "bids": _nexmark_table("bids", events),
        "persons": _nexmark_table("persons", events * _RARER),
        "auctions": _nexmark_table("auctions", events * _RARER),
        _EVENTS: _yahoo_table(events),
    }
    inputs = InputFiles(
        folder, folder / "in-order", {name: table.num_rows for name, table in tables.items()}
    )
    inputs.in_order.mkdir(parents=True)
    for name, table in tables.items():
        _write(table, stream_path(folder, name))
    _write(tables["bids"].sort_by("date_time"), stream_path(inputs.in_order, "bids"))
    pq.write_table(yahoo.ads_table(YahooSettings()), stream_path(folder, ADS))
    return inputs


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


def _nexmark_table(stream: str, events: int) -> pa.Table:
    import pyarrow as pa
    import pyarrow.compute as pc

    table = pa.concat_tables(nexmark.tables(stream, NexmarkSettings(events=events)))
    times: Any = pc.floor_temporal(table["date_time"], unit="millisecond")
    return table.set_column(table.schema.get_field_index("date_time"), "date_time", times)


def _yahoo_table(events: int) -> pa.Table:
    import pyarrow as pa

    table = pa.concat_tables(yahoo.event_tables(YahooSettings(events=events)))
    times = table["event_time"].cast(pa.timestamp("us"))
    return table.set_column(table.schema.get_field_index("event_time"), "event_time", times)


def _write(table: pa.Table, path: Path) -> None:
    import pyarrow.parquet as pq

    pq.write_table(table, path, row_group_size=_ROW_GROUP, compression="lz4")
