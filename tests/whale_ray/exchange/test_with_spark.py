"""DataFrames in and out of one real Spark on Ray, compared with what Spark says that they hold."""

from __future__ import annotations

import datetime as dt
import json
import os
import pickle
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import whale_ray as whale
from tests.runs import rest
from tests.whale_ray.applications.ride_hailing.test_ride_hailing_runs import (
    RideFiles,
    assert_equal_answers,
)
from tests.whale_ray.exchange.source_tables import table_of
from tests.whale_ray.spark import spark_rows as rows
from whale_ray.cli.main import main
from whale_ray.configs.settings import Settings, SparkSettings
from whale_ray.errors import InputError, OutputError, UsageError
from whale_ray.operators.sources import Source
from whale_ray.ray_bridge import RaySession
from whale_ray.ray_bridge.blocks import FileSource, ObjectSource
from whale_ray.spark import (
    RowTransfer,
    SparkResult,
    adopt_session,
    foreach_batch,
    micro_batch_source,
    spark_locally,
    spark_on_ray,
    spark_sink,
    spark_source,
    start_session,
    stop_session,
    to_spark,
)
from whale_ray.testing import instance_context, write_all
from whale_ray.transport.wire.batch import Batch

pytestmark = [pytest.mark.spark, pytest.mark.ray, pytest.mark.long]


WAYS = pytest.mark.parametrize("cluster", [True, False], ids=["objects", "files"])
JOBS_TIMEOUT_S = 60


@pytest.fixture(scope="module")
def spark(session: RaySession) -> Iterator[Any]:
    settings = SparkSettings(executor_memory_mb=512, driver_memory_mb=512, shuffle_partitions=2)
    started = start_session("tests", settings, session)
    yield started
    stop_session(started)


def read(frame: Any, cluster: bool) -> pa.Table:
    source = spark_source(frame).materialize(cluster=cluster)
    assert isinstance(source, ObjectSource if cluster else FileSource)
    table = table_of(source)
    source.release()
    return table


def jobs_until(spark: Any, wanted: bool) -> bool:
    """Return whether Spark has jobs, once that is as wanted or a time is over."""
    tracker = spark.sparkContext.statusTracker()
    until = time.monotonic() + JOBS_TIMEOUT_S
    while (has := bool(tracker.getActiveJobsIds())) != wanted and time.monotonic() < until:
        rest()
    return has


@WAYS
def test_an_interrupt_ends_the_query_that_is_evaluated(spark: Any, cluster: bool) -> None:
    """Else the next query waits for its cores."""
    main = threading.get_ident()

    def interrupt() -> None:
        if jobs_until(spark, wanted=True):
            signal.pthread_kill(main, signal.SIGINT)

    endless = spark.range(1 << 60).where("id < 0")
    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        read(endless, cluster)
    thread.join()
    assert not jobs_until(spark, wanted=False)
    assert read(spark.range(3), cluster).num_rows == 3


def told_by_spark(frame: Any) -> dict[str, list[str | None]]:
    """Return every value as Spark spells it, sorted by the column `row`."""
    told = frame.orderBy("row").selectExpr(*rows.spelled_by_spark(frame.schema)).collect()
    return {name: [line[i] for line in told] for i, name in enumerate(frame.columns)}


# Out.


def test_every_value_reaches_spark_exactly(spark: Any) -> None:
    table = rows.rows_of_ours()
    frame = to_spark(table, spark)
    assert frame.columns == table.column_names
    assert told_by_spark(frame) == rows.spelled(table)


def test_a_sinks_result_reaches_spark_exactly(spark: Any) -> None:
    table = rows.rows_of_ours()
    halves = [Batch.from_arrow(table.slice(0, 200)), Batch.from_arrow(table.slice(200))]
    result = write_all(spark_sink().configured(Settings()), [halves[0]], [halves[1]])
    result = pickle.loads(pickle.dumps(result))
    assert isinstance(result, SparkResult)
    assert told_by_spark(result.to_spark()) == rows.spelled(table)


def test_a_jobs_parquet_output_is_read_where_it_lies(spark: Any, tmp_path: Path) -> None:
    table = rows.rows_of_spark()
    result = write_all(whale.sinks.parquet(tmp_path / "own"), [Batch.from_arrow(table)])
    frame = to_spark(result, spark)
    assert told_by_spark(frame) == rows.spelled(table)
    assert frame.inputFiles() == [f"file://{path}" for path in result.parts]

    foreign = table.select(["row"]).append_column("u64", pa.array([1] * len(table), pa.uint64()))
    result = write_all(whale.sinks.parquet(tmp_path / "foreign"), [Batch.from_arrow(foreign)])
    frame = to_spark(result, spark)
    assert told_by_spark(frame) == rows.spelled(foreign)
    assert str(tmp_path) not in frame.inputFiles()[0]


def test_a_result_without_rows_keeps_its_columns(spark: Any) -> None:
    empty = rows.rows_of_ours().slice(0, 0)
    sink = spark_sink().configured(Settings())
    result = write_all(sink, [Batch.from_arrow(empty)], [])
    assert isinstance(result, SparkResult)
    for frame in (to_spark(empty, spark), result.to_spark(spark)):
        assert frame.columns == empty.column_names
        assert frame.count() == 0


def test_outputs_without_rows_have_columns_in_spark(spark: Any, tmp_path: Path) -> None:
    """Also where no row reached the sink; Spark passes over the list of parts beside them."""
    topology = whale.Topology("none")
    table = whale.sources.iterable([{"id": 1, "at": b"x"}, {"id": 2, "at": b"y"}])
    found = topology.source(table, id="rows").filter(whale.col("id") > 5)
    found.sink(spark_sink(), id="frame")
    found.sink(whale.sinks.parquet(tmp_path / "parquet"), id="parquet")
    found.select("id").sink(whale.sinks.csv(tmp_path / "csv"), id="csv")
    job = whale.run(topology)
    frame = job.results("frame").to_spark(spark)
    assert (frame.dtypes, frame.count()) == ([("id", "bigint"), ("at", "binary")], 0)
    read = spark.read.parquet(f"file://{tmp_path}/parquet")
    assert (read.dtypes, read.count()) == (frame.dtypes, 0)
    read = spark.read.option("header", "true").csv(f"file://{tmp_path}/csv")
    assert (read.columns, read.count()) == (["id"], 0)


def test_a_frame_is_a_table_to_join_with(spark: Any) -> None:
    frame = to_spark(pa.table({"id": [1, 2, 2], "word": ["a", "b", None]}), spark)
    topology = whale.Topology("words")
    rows = topology.source(whale.sources.iterable([{"id": 2}, {"id": 3}, {"id": 1}]), id="rows")
    rows.join_table(frame.orderBy("word"), on="id", how="left").sink(
        whale.sinks.collect(), id="out"
    )
    found = whale.run(topology).results("out").to_arrow().to_pylist()
    words = sorted((row["id"], row["word"] or "") for row in found)
    assert words == [(1, "a"), (2, ""), (2, "b"), (3, "")]


def test_spark_computes_only_the_columns_that_are_needed(spark: Any) -> None:
    frame = to_spark(pa.table({"id": [1, 2], "a b": [3, 4], "word": ["a", "b"]}), spark)
    topology = whale.Topology("narrow")
    rows = topology.source(spark_source(frame.orderBy("id")), id="rows")
    rows.filter(whale.col("id") > 0).select("a b").sink(whale.sinks.collect(), id="out")
    assert "Spark DataFrame (id, a b)" in str(topology.explain())
    assert whale.run(topology).results("out").preview() == [{"a b": 3}, {"a b": 4}]


def test_rows_leave_a_session_of_ours_for_pandas_by_arrow(spark: Any) -> None:
    assert spark.conf.get("spark.sql.execution.arrow.pyspark.enabled") == "true"
    table = pa.table({"id": [1, 2**53 + 1], "word": ["a", None], "share": [0.5, 1e300]})
    made = to_spark(table, spark).orderBy("id").toPandas()
    assert pa.Table.from_pandas(made).equals(table)


def test_names_of_any_kind(spark: Any) -> None:
    table = pa.table({"a.b": [1], "c d": [2], "`e`": [3], "f,;{}()=": [4], "é": [5]})
    frame = to_spark(table, spark)
    assert [frame.columns, list(frame.collect()[0])] == [table.column_names, [1, 2, 3, 4, 5]]
    for cluster in (True, False):
        assert read(frame, cluster).equals(table)
    chosen = spark_source(frame, columns=["`e`", "a.b"]).materialize(cluster=False)
    assert table_of(chosen).equals(table.select(["`e`", "a.b"]))


def test_names_that_differ_in_case_alone(spark: Any) -> None:
    with pytest.raises(OutputError) as raised:
        to_spark(pa.table({"at": [1], "AT": [2]}), spark)
    assert str(raised.value) == (
        "columns 'at' and 'AT' differ in case alone, which Spark does not tell apart; rename one "
        "before the sink, or set spark.sql.caseSensitive to true"
    )


def test_a_sink_refuses_what_spark_cannot_hold_at_the_first_rows(spark: Any) -> None:
    batch = Batch.from_arrow(pa.table({"t": pa.array([1], pa.time64("us"))}))
    with pytest.raises(OutputError, match="column 't' has type time64"):
        write_all(spark_sink().configured(Settings()), [batch])


# In.


@WAYS
def test_every_value_is_read_exactly(spark: Any, cluster: bool) -> None:
    table = rows.rows_of_spark()
    frame = to_spark(table, spark)
    back = read(frame, cluster).sort_by("row")
    assert back.schema == table.schema
    assert rows.spelled(back) == told_by_spark(frame)


@WAYS
def test_partitions_keep_their_order_and_are_dealt_out_in_turn(spark: Any, cluster: bool) -> None:
    frame = spark.range(0, 40, 1, 4).where("id < 10 OR id >= 30")  # two partitions are empty
    source = spark_source(frame).materialize(cluster=cluster)
    numbers = [*range(10), *range(30, 40)]
    assert table_of(source)["id"].to_pylist() == numbers
    assert table_of(source)["id"].to_pylist() == numbers  # a new attempt
    shares = [table_of(source, instance, 3)["id"].to_pylist() for instance in range(3)]
    assert sorted(number for share in shares for number in share) == numbers
    assert all(share == sorted(share) for share in shares)


@WAYS
def test_no_rows_and_no_partitions(spark: Any, cluster: bool) -> None:
    nothing = spark.createDataFrame(spark.sparkContext.emptyRDD(), "n bigint")
    for frame in (spark.range(0), nothing):
        table = read(frame, cluster)
        assert table.num_rows == 0
        assert table.schema.types == [pa.int64()]


@WAYS
def test_the_sessions_zone_is_kept(spark: Any, cluster: bool) -> None:
    frame = spark.sql("SELECT timestamp_micros(1711853999123457) AS at")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        at = read(frame, cluster)["at"]
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert at.type == pa.timestamp("us", "America/New_York")
    assert at.cast(pa.int64()).to_pylist() == [1711853999123457]


@WAYS
def test_a_failing_query_says_why(spark: Any, cluster: bool) -> None:
    frame = spark.range(2).selectExpr("if(id < 1, id, raise_error('no such taxi')) AS id")
    with pytest.raises(InputError) as raised:
        spark_source(frame).materialize(cluster=cluster)
    assert str(raised.value) == (
        "Spark DataFrame (id): Spark cannot evaluate it: java.lang.RuntimeException: no such taxi"
    )


def test_spark_keeps_nothing_of_a_dataframe_that_was_read(spark: Any) -> None:
    def cached() -> set[int]:
        return set(spark.sparkContext._jsc.getPersistentRDDs())

    before = cached()
    read(spark.range(10), cluster=True)
    assert cached() <= before


def test_a_dataframe_itself_does_not_travel(spark: Any) -> None:
    source = spark_source(spark.range(3))
    assert source.describe() == "Spark DataFrame (id)"
    with pytest.raises(UsageError) as raised:
        pickle.dumps(source)
    assert str(raised.value) == (
        "a Spark DataFrame can only be read where it was made; submit the topology from there"
    )


def test_mistakes_are_found_while_building(spark: Any) -> None:
    frame = spark.sql("SELECT 1 AS n, array(1) AS tags")
    with pytest.raises(InputError, match="column 'tags' has Spark's type array<int>"):
        spark_source(frame)
    with pytest.raises(InputError, match="the Spark DataFrame: no column 'm'; it has 'n'"):
        spark_source(frame.select("n"), columns=["m"])
    assert spark_source(frame, columns=["n"]).schema().names == ("n",)


# Jobs.


class Sum(whale.Process):
    def open(self, context: Any) -> None:
        self.sums: dict[int, int] = {}

    def on_batch(self, batch: Batch, out: Any) -> None:
        for key, number in zip(batch["key"].tolist(), batch["id"].tolist(), strict=True):
            self.sums[key] = self.sums.get(key, 0) + number

    def close(self, out: Any) -> None:
        out.emit_rows([{"key": key, "sum": total} for key, total in self.sums.items()])


@pytest.mark.parametrize("on", ["ray", "inline"])
def test_a_job_takes_rows_from_spark_and_gives_spark_the_result(spark: Any, on: str) -> None:
    frame = spark.range(0, 20_000, 1, 3).selectExpr("id", "id % 7 AS key")
    topology = whale.Topology("sums")
    stream = topology.source(whale.sources.spark(frame), id="rows")
    sums = stream.key_by("key").process(Sum, id="sum", parallelism=2)
    sums.sink(whale.sinks.spark(), id="out")
    job = whale.submit(topology, workers=1).wait() if on == "ray" else whale.run(topology)
    expected = frame.groupBy("key").sum("id").orderBy("key").collect()
    assert job.results("out").to_spark().orderBy("key").collect() == expected


@pytest.mark.long
@pytest.mark.timeout(600)  # Spark prepares a week of positions, beside two other such tests
def test_the_real_week_on_ray_as_spark_prepared_it_is_what_one_query_answers(
    spark: Any, data_dir: Path, tmp_path: Path, capsys: Any
) -> None:
    words = ["run", "ride-hailing", "--data", str(data_dir), "--parallelism", "16", "--json"]
    assert main([*words, "--workers", "2", "--output", str(tmp_path / "out")]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    requests = pq.read_table(data_dir / "sf_taxi_requests.parquet")
    week = RideFiles(data_dir / "sf_taxi_gps.parquet", requests, tmp_path)
    assert (told["settings"]["on"], told["rows_out"]) == ("ray", week.expected.num_rows)
    assert_equal_answers(pq.read_table(tmp_path / "out"), week.expected)


# Sessions.


def test_a_session_on_ray_hands_over_objects(spark: Any) -> None:
    assert adopt_session(spark) is RowTransfer.OBJECTS
    with spark_on_ray("joined") as same, spark_locally("joined") as again:
        assert same is again is spark
    assert spark.range(3).count() == 3  # neither has stopped it


def test_temporary_files_of_java_are_where_they_are_removed(spark: Any) -> None:
    """Ray kills executors: what their Java has unpacked would stay in the temporary directory."""
    made = "reflect('java.io.File', 'createTempFile', 'made', 'here') AS by_executor"
    (row,) = spark.range(1).selectExpr(made).collect()
    by_driver = spark._jvm.java.io.File.createTempFile("made", "here").toString()
    ours = f"{tempfile.gettempdir()}/whale-ray-handover-{os.getpid()}-"
    assert row.by_executor.startswith(ours)
    assert by_driver.startswith(ours)
    assert Path(row.by_executor).parent != Path(by_driver).parent


def test_a_second_session_is_refused(spark: Any, session: RaySession) -> None:
    with pytest.raises(UsageError) as raised:
        start_session("second", SparkSettings(), session)
    assert str(raised.value) == (
        "this process has a Spark session already; use that one (its DataFrames are read as they "
        "are), or stop it first"
    )


def test_structured_streaming_runs_a_topology_per_micro_batch(spark: Any, tmp_path: Path) -> None:
    received: dict[int, list[int]] = {}

    def build(source: Source, number: int) -> whale.Topology:
        topology = whale.Topology("doubling")
        numbers = topology.source(source, id="numbers")
        doubled = numbers.select((whale.col("id") * 2).alias("twice"))
        doubled.sink(whale.sinks.spark(), id="out")
        return topology

    def receive(job: Any, number: int) -> None:
        frame = job.results("out").to_spark()
        received[number] = sorted(row.twice for row in frame.collect())

    for number in range(2):
        spark.range(10 * number, 10 * number + 3).coalesce(1).write.mode("append").parquet(
            str(tmp_path / "in")
        )
    stream = (
        spark.readStream.schema("id bigint")
        .option("maxFilesPerTrigger", 1)
        .parquet(str(tmp_path / "in"))
    )
    with pytest.raises(UsageError, match="this is a streaming DataFrame, which has no end"):
        spark_source(stream)
    query = (
        stream.writeStream.foreachBatch(foreach_batch(build, receive, submit=whale.run))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(60)
    assert sorted(received.values()) == [[0, 2, 4], [20, 22, 24]]


def test_micro_batches_are_handed_over_once_each(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark repeats the last micro-batch, of which it does not know that it was taken."""
    batches = whale.sources.micro_batches(tmp_path / "batches")

    def stream(rows: range) -> None:
        folder = str(tmp_path / "in")
        frame = spark.range(rows.start, rows.stop, 1, 3).selectExpr(
            "id", "date_add(date'1500-01-01', int(id)) AS day", "timestamp_micros(id) AS at"
        )
        frame.write.mode("append").parquet(folder)
        query = (
            spark.readStream.schema(frame.schema)
            .parquet(folder)
            .writeStream.foreachBatch(batches.take)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(60)

    stream(range(10))
    for name in (tmp_path / "checkpoint" / "commits").glob("*0*"):
        name.unlink()
    stream(range(10, 15))
    names = sorted(path.name for path in (tmp_path / "batches").glob("batch-*"))
    assert [name[: len("batch-000000000")] for name in names] == [
        "batch-000000000",
        "batch-000000001",
    ]
    reader = batches.open(instance_context())
    found = list(iter(lambda: reader.read(1000), None))
    table = pa.Table.from_batches([batch.to_arrow() for batch in found]).sort_by("id")
    reader.close()
    assert table["id"].to_pylist() == list(range(15))
    day = dt.date(1500, 1, 1)
    assert table["day"].to_pylist() == [day + dt.timedelta(days=n) for n in range(15)]
    assert table["at"].cast(pa.int64()).to_pylist() == list(range(15))
    with pytest.raises(UsageError, match="has micro-batches of another query"):
        batches.take(spark.range(1), 2)
    monkeypatch.setattr(micro_batch_source, "_LOCK_WAIT_S", 0)
    with (
        batches.folder.lock(2, 0),
        pytest.raises(InputError, match="another driver has been writing into"),
    ):
        batches.take(spark.range(1), 2)
