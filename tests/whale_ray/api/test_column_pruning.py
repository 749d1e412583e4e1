"""Sources read only the columns that somebody needs, and no result changes by it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import whale_ray as whale
from whale_ray import functions
from whale_ray.api.submission import run
from whale_ray.operators.sources.parquet_files import ParquetSource
from whale_ray.plan.column_pruning import prune_columns

COUNT = 500
BIDS = pa.table(
    {
        "at": pa.array(range(COUNT), pa.timestamp("s")),
        "k": [f"key {n % 7}" for n in range(COUNT)],
        "price": [n * 3 % 101 for n in range(COUNT)],
        "share": [n / 3 for n in range(COUNT)],
        "text": [f"a long text about {n}" for n in range(COUNT)],
    }
)
PEOPLE = pa.table({"k": [f"key {n}" for n in range(5)], "who": list("abcde"), "age": range(5)})


class Prices(whale.KeyedProcess):
    """Code of a user's, which may read any column."""

    total = whale.state.sum("int64")

    def on_row(self, row: Any, out: Any) -> None:
        self.total.add(row.price)
        out.emit_row(k=self.key.k, total=self.total.get())


def even(row: Any) -> bool:
    return row.price % 2 == 0


def first_instance(batch: whale.Batch, parallelism: int) -> Any:
    return [len(text) % parallelism for text in batch["text"]]


def window_counts(bids: whale.Stream, _: whale.Stream) -> whale.Stream:
    views = bids.filter(whale.col("price") > 10)
    return views.group_by(whale.window("at", "1 minute"), "k").agg(functions.count().alias("n"))


def late_rows(bids: whale.Stream, people: whale.Stream) -> whale.Stream:
    counts = window_counts(bids, people)
    counts.late.sink(whale.sinks.collect(), id="late")
    return counts


C, F = whale.col, functions
PIPELINES: dict[str, tuple[Callable[..., whale.Stream], str | None, str | None]] = {
    "all rows": (lambda b, _: b, None, None),
    "select": (lambda b, _: b.select("price", C("k").alias("key")), "at k price", None),
    "select of a select": (
        lambda b, _: b.select("price", "k", "text").select("k"),
        "at k price text",
        None,
    ),
    "with_column": (
        lambda b, _: b.with_column("twice", C("price") * 2).select("twice", "share"),
        "at price share",
        None,
    ),
    "a column that is replaced": (
        lambda b, _: b.with_column("text", C("price") * 2).select("text"),
        "at price",
        None,
    ),
    "filter": (lambda b, _: b.filter(C("share") > 9).select("k"), "at k share", None),
    "a function": (lambda b, _: b.filter(even).select("k"), None, None),
    "a process": (lambda b, _: b.key_by("k").process(Prices), None, None),
    "windows": (window_counts, "at k price", None),
    "windows and late rows": (late_rows, None, None),
    "counts of all": (
        lambda b, _: b.group_by("k").agg(F.count().alias("n")).select("n"),
        "at k",
        None,
    ),
    "nothing but times": (
        lambda b, _: b.group_by(whale.window("at", "1 minute")).agg(F.count().alias("n")),
        "at",
        None,
    ),
    "aggregates of expressions": (
        lambda b, _: b.group_by("k").agg(F.max(C("price") + C("share")).alias("m")),
        "at k price share",
        None,
    ),
    "duplicates": (
        lambda b, _: b.drop_duplicates("k", within="1 minute").select("price"),
        "at k price",
        None,
    ),
    "duplicates of all": (
        lambda b, _: b.drop_duplicates(within="1 minute").select("price"),
        None,
        None,
    ),
    "a table": (
        lambda b, p: b.join_table(p, on="k").select("price", "who"),
        "at k price",
        "k who",
    ),
    "a table, all of it": (lambda b, p: b.join_table(p, on="k", how="left"), None, None),
    "a table's keys": (lambda b, p: b.join_table(p, on="k", how="semi"), None, "k"),
    "a table that changes": (
        lambda b, p: b.join_table(PEOPLE, on="k", changes=p).select("price"),
        None,
        None,
    ),
    "an exchange by column": (
        lambda b, _: b.key_by("k").filter(C("price") > 5, parallelism=2).select("share"),
        "at k price share",
        None,
    ),
    "an exchange by function": (
        lambda b, _: b.partition_by(first_instance).filter(C("price") > 5).select("share"),
        None,
        None,
    ),
    "a union": (
        lambda b, _: b.filter(C("price") > 5).union(b.filter(C("price") < 3)).select("k"),
        None,
        None,
    ),
    "two readers": (
        lambda b, p: (
            b.select("price").union(b.select("price")).group_by("price").agg(F.count().alias("n"))
        ),
        "at price",
        None,
    ),
    "a join of two streams": (
        lambda b, p: b.join(
            b.select(C("k").alias("key"), C("price").alias("other")),
            on={"k": "key"},
            within=whale.window("10 s"),
        ).select("other"),
        None,
        None,
    ),
}


def built(folder: Path, name: str) -> whale.Topology:
    for stream, table in (("bids", BIDS), ("people", PEOPLE)):
        if not (folder / f"{stream}.parquet").exists():
            pq.write_table(table, folder / f"{stream}.parquet", row_group_size=100)
    topology = whale.Topology("pruned")
    bids = topology.source(
        whale.sources.parquet(folder / "bids.parquet"), id="bids", event_time="at"
    )
    people: Any = whale.sources.parquet(folder / "people.parquet")
    if "table" in name:
        people = topology.source(people, id="people")
    PIPELINES[name][0](bids, people).sink(whale.sinks.collect(), id="out")
    return topology


def columns_read(topology: whale.Topology, source: str) -> str | None:
    payload = prune_columns(topology.logical_plan()).node(source).payload
    assert isinstance(payload, ParquetSource)
    return None if payload.columns is None else " ".join(payload.columns)


@pytest.mark.parametrize("name", PIPELINES)
def test_a_source_reads_what_is_needed_and_results_are_equal(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, bids, people = PIPELINES[name]
    topology = built(tmp_path, name)
    assert columns_read(topology, "bids") == bids
    if "table" in name:
        assert columns_read(topology, "people") == people
    pruned = run(topology).results("out").to_arrow()
    monkeypatch.setattr("whale_ray.api.job_requests.prune_columns", lambda logical: logical)
    whole = run(built(tmp_path, name)).results("out").to_arrow()
    assert pruned.schema == whole.schema
    assert pruned.num_rows > 0
    assert Counter(map(str, pruned.to_pylist())) == Counter(map(str, whole.to_pylist()))


def test_a_source_without_any_column_that_is_needed_reads_the_narrowest(tmp_path: Path) -> None:
    pq.write_table(
        BIDS.select(["text", "share", "price"]).cast(
            pa.schema({"text": pa.string(), "share": pa.float64(), "price": pa.int16()})
        ),
        tmp_path / "bids.parquet",
    )
    topology = whale.Topology("counted")
    rows = topology.source(whale.sources.parquet(tmp_path), id="bids")
    rows.select(whale.lit(1).alias("one")).sink(whale.sinks.collect(), id="out")
    assert columns_read(topology, "bids") == "price"
    assert run(topology).results("out").rows == COUNT


def test_tables_in_memory_are_sent_without_columns_that_nobody_needs() -> None:
    topology = whale.Topology("in-memory")
    rows = topology.source(whale.sources.arrow(BIDS), id="bids")
    rows.filter(C("price") > 50).select("k").sink(whale.sinks.collect(), id="out")
    payload: Any = prune_columns(topology.logical_plan()).node("bids").payload
    assert payload.table.column_names == ["k", "price"]
    expected = BIDS.filter(pc.field("price") > 50)["k"].to_pylist()
    assert run(topology).results("out").to_arrow()["k"].to_pylist() == expected


def test_explain_says_which_columns_are_read(tmp_path: Path) -> None:
    text = " ".join(str(built(tmp_path, "windows").explain()).split())
    assert "bids.parquet (at, k, price)" in text
    assert "bids.parquet (" not in " ".join(str(built(tmp_path, "all rows").explain()).split())


def test_a_missing_column_is_still_reported_with_those_that_there_are(tmp_path: Path) -> None:
    built(tmp_path, "all rows")
    topology = whale.Topology("missing")
    rows = topology.source(whale.sources.parquet(tmp_path / "bids.parquet"), id="bids")
    with pytest.raises(whale.errors.TopologyError, match=r"columns: at, k, price, share, text"):
        rows.select("prize")
