"""Pathway: the workloads as tables, over the same Parquet files, read through pandas.

Its own reader of Parquet, that of Delta tables, wants a license. Tables are static: Pathway takes
all rows as one batch in time. Its own reducers count and add up the results. Sessions take it three
minutes per million rows, other windows of auctions a quarter: they are left out.
"""

from __future__ import annotations

import resource
from collections.abc import Callable
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

from ....transport.clock import SystemClock
from .answers import Answer
from .inputs import ADS, stream_path
from .timing import Ran, Runner
from .workloads import workload_named

__all__ = ["ENVIRONMENT", "TABLES", "query_pathway", "runner"]

ENVIRONMENT = "pathway"

_SIZE = timedelta(seconds=10)
_SLIDE = timedelta(seconds=2)
_RENAMED = {"id": "id_"}
"""Columns whose names Pathway takes for itself."""


def _hopping(pw: Any, bids: Any) -> Any:
    windows = pw.temporal.sliding(hop=_SLIDE, duration=_SIZE)
    return bids.windowby(bids.date_time, window=windows, instance=bids.auction).reduce(
        auction=pw.this._pw_instance, start=pw.this._pw_window_start, bids=pw.reducers.count()
    )


def _hot_items(pw: Any, bids: Any) -> Any:
    counts = _hopping(pw, bids).rename_by_dict({"bids": "num"})
    tops = counts.groupby(counts.start).reduce(counts.start, most=pw.reducers.max(counts.num))
    return counts.join(tops, counts.start == tops.start, counts.num == tops.most).select(
        counts.auction, counts.num
    )


def _highest(pw: Any, bids: Any) -> Any:
    windows = pw.temporal.tumbling(duration=_SIZE)
    highest = bids.windowby(bids.date_time, window=windows).reduce(
        start=pw.this._pw_window_start, price=pw.reducers.max(pw.this.price)
    )
    placed = bids.with_columns(start=bids.date_time.dt.floor("10s"))
    return placed.join(
        highest, placed.start == highest.start, placed.price == highest.price
    ).select(placed.auction, placed.price, placed.bidder, placed.date_time, placed.extra)


def _new_users(pw: Any, persons: Any, auctions: Any) -> Any:
    sellers = auctions.select(auctions.seller, start=auctions.date_time.dt.floor("10s"))
    sellers = sellers.groupby(sellers.seller, sellers.start).reduce(sellers.seller, sellers.start)
    start = persons.date_time.dt.floor("10s")
    people = persons.select(persons.id_, persons.name, start=start)
    return people.join(sellers, people.id_ == sellers.seller, people.start == sellers.start).select(
        people.id_, people.name, people.start
    )


def _views(pw: Any, events: Any, ads: Any) -> Any:
    views = events.filter(events.event_type == "view")
    joined = views.join(ads, views.ad_id == ads.ad_id).select(
        ads.campaign_id, start=views.event_time.dt.floor("10s")
    )
    return joined.groupby(joined.campaign_id, joined.start).reduce(
        joined.campaign_id, joined.start, views=pw.reducers.count()
    )


TABLES: dict[str, Callable[..., Any]] = {
    "NEXMark 5, hot items": _hot_items,
    "NEXMark 7, highest bid": _highest,
    "NEXMark 8, new users": _new_users,
    "Yahoo, views per campaign": _views,
}
"""Workload → a table of its results, of the module of Pathway and the tables of its streams."""


def query_pathway(workload: str, folder: Path) -> Answer:
    """Run a workload to its end."""
    pw: Any = import_module("pathway")  # not installed where types are checked
    pw.internals.parse_graph.G.clear()
    one = workload_named(workload)
    reads = {**one.reads, **({ADS: ("ad_id", "campaign_id")} if "events" in one.reads else {})}
    tables = [_read(pw, folder, name, columns) for name, columns in reads.items()]
    results = TABLES[workload](pw, *tables)
    total = _RENAMED.get(one.total, one.total)
    found = results.reduce(rows=pw.reducers.count(), total=pw.reducers.sum(results[total]))
    answer = Answer(0, 0)

    def take(key: object, row: dict[str, int], time: int, is_addition: bool) -> None:
        nonlocal answer
        if is_addition:
            answer = Answer(row["rows"], row["total"])

    pw.io.subscribe(found, on_change=take)
    pw.run(monitoring_level=pw.MonitoringLevel.NONE)
    return answer


def runner(workload: str, folder: Path) -> Runner:
    """Return what runs a workload once."""

    def run() -> Ran:
        clock, before_s = SystemClock(), _cpu_s()
        begin_ns = clock.monotonic_ns()
        answer = query_pathway(workload, folder)
        return Ran((clock.monotonic_ns() - begin_ns) / 1e9, _cpu_s() - before_s, answer)

    return run


def _cpu_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def _read(pw: Any, folder: Path, stream: str, columns: tuple[str, ...]) -> Any:
    """Return a static table; `table_from_pandas` would make a fingerprint of every row first."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    sources: Any = import_module("pathway.internals.datasource")
    table = pq.read_table(stream_path(folder, stream), columns=list(columns))
    for place, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type):
            nanoseconds = table[field.name].cast(pa.timestamp("ns"))
            table = table.set_column(place, field.name, nanoseconds)
    table = table.rename_columns([_RENAMED.get(name, name) for name in table.column_names])
    types = {field.name: _type(pw, str(field.type)) for field in table.schema}
    rows = sources.PandasDataSource(schema=pw.schema_from_types(**types), data=table.to_pandas())
    return pw.debug.table_from_datasource(rows)


def _type(pw: Any, arrow: str) -> Any:
    return {"int64": int, "string": str}.get(arrow, pw.DateTimeNaive)
