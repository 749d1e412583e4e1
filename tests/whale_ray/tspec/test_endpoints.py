"""Sources and sinks as tspec files: they come back equal, or the reason is told."""

from __future__ import annotations

import datetime as dt
import functools
import math
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest

import whale_ray as whale
from tests.whale_ray.tspec.test_round_trips import check, sink
from whale_ray.configs.errors import UsageError

AT = dt.datetime.fromisoformat("2026-01-02 03:04:05.000001")
LOOP: list = []
LOOP.append(LOOP)
CLUSTER = {"bootstrap_servers": "here:9092", "config": {"client.id": "me"}}


def numbered():
    """Return rows, each time anew."""
    return [{"n": number} for number in range(3)]


def numbered_from(row):
    """Return the rows from a number on."""
    return numbered()[row:]


def two(batch):
    return batch


SOURCES = {
    "growing": lambda path: whale.sources.growing_folder(path, poll_ms=250, remember_files=7),
    "growing-csv": lambda path: whale.sources.growing_folder(
        path, "csv", {"a": "int64", "b": "string"}, ["b"], order="time", delimiter=";"
    ),
    "kafka": lambda _: whale.sources.kafka("t", **CLUSTER, schema={"n": "int64"}, group="g"),
    "kafka-bytes": lambda _: whale.sources.kafka(
        ["t", "u"],
        ["here:9092", "there:9092"],
        value="bytes",
        columns={"k": "key"},
        start=dt.datetime(2026, 1, 2, 3, 4, 5, 600, dt.UTC),
        end="latest",
        on_expired="earliest",
        find_partitions_s=5,
    ),
    "kafka-offsets": lambda _: whale.sources.kafka(
        "t", "here:9092", value=two, start={0: 5, 1: 0}, end={0: 9, 1: 4}
    ),
    "iterable": lambda _: whale.sources.iterable([{"n": 1, "s": None, "d": dt.date(2026, 1, 2)}]),
    "iterable-empty": lambda _: whale.sources.iterable([], {"n": "int64"}),
    "iterable-odd": lambda _: whale.sources.iterable(
        [
            {"n": math.inf, "s": "a\x85b", "b": b"\xff", "t": AT},
            {"n": -0.0, "s": "a\u2028\0 ", "b": None, "t": AT.replace(1000)},
        ]
    ),
    "iterable-zones": lambda _: whale.sources.iterable(
        [
            {"t": dt.datetime(2026, 1, 2, tzinfo=ZoneInfo("UTC"))},
            {"t": dt.datetime(2026, 1, 2, tzinfo=dt.timezone(dt.timedelta(hours=-3.5)))},
        ]
    ),
    "csv-without-nulls": lambda path: whale.sources.csv(
        path / "s.csv", {"a": "int64", "b": "string"}, [], null_values=(), delimiter="\t"
    ),
    "iterable-function": lambda _: whale.sources.iterable(
        numbered, {"n": "int64"}, bounded=False, resume=numbered_from
    ),
    "arrow": lambda _: whale.sources.arrow(
        pa.table({"n": [1, None], "d": pa.array(["a", "a"]).dictionary_encode()})
    ),
}
SINKS = {
    "delta": lambda path: whale.sinks.delta(
        path / "d", mode="overwrite", partition_by="n", compression="gzip"
    ),
    "delta-url": lambda _: whale.sinks.delta(
        "s3://bucket/t", storage_options={"AWS_REGION": "eu-north-1"}
    ),
    "postgres": lambda _: whale.sinks.postgres("host=here dbname=d", "s.t", mode="upsert", key="n"),
    "postgres-append": lambda _: whale.sinks.postgres("postgresql://me@here/d", "t"),
    "kafka": lambda _: whale.sinks.kafka(
        "t", **CLUSTER, key="n", headers={"h": "n"}, timestamp="at", if_unknown="skip"
    ),
    "kafka-at-least-once": lambda _: whale.sinks.kafka(
        "t", "here:9092", value=two, transactional=False
    ),
}


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize("on_bad_rows", ["fail", "drop"])
def test_a_source_comes_back_equal(name, on_bad_rows, tmp_path):
    (tmp_path / "s.csv").write_text("a\tb\n1\t\n")
    topology = whale.Topology("source")
    rows = topology.source(SOURCES[name](tmp_path), id="rows", on_bad_rows=on_bad_rows)
    rows.sink(sink(), id="out")
    found, given = (one.logical_plan().node("rows").payload for one in (check(topology), topology))
    assert found == given


@pytest.mark.parametrize("name", SINKS)
def test_a_sink_comes_back_equal(name, tmp_path):
    topology = whale.Topology("sink")
    rows = topology.source(whale.sources.iterable([{"n": 1}]), id="rows")
    rows.sink(SINKS[name](tmp_path), id="out")
    found, given = (one.logical_plan().node("out").payload for one in (check(topology), topology))
    assert found == given


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (
            lambda: whale.sinks.kafka("t", "here:9092", config={"sasl.password": "no-one-sees"}),
            "its config have 'sasl.password', and such files have no credentials",
        ),
        (
            lambda: whale.sinks.delta(
                "s3://b/t", storage_options={"AWS_SECRET_ACCESS_KEY": "no-one-sees"}
            ),
            "its storage_options have 'AWS_SECRET_ACCESS_KEY'",
        ),
        (
            lambda: whale.sinks.postgres("postgresql://me:no-one-sees@here/d", "t"),
            "its dsn has a password, .* leave it to PGPASSWORD",
        ),
        (
            lambda: whale.sinks.postgres("host=h sslpassword=no-one-sees", "t"),
            "its dsn has a password",
        ),
        (lambda: whale.sinks.postgres("host=h password='no-one-sees", "t"), "its dsn is none of"),
        (lambda: whale.sinks.delta("s3://me:no-one-sees@b/t"), "its URL has a credential"),
        (lambda: whale.sinks.delta("az://c/t?sig=no-one-sees"), "its URL has a credential, and"),
        (
            lambda: whale.sinks.delta(
                "az://c/t", storage_options={"proxy_url": "http://me:no-one-sees@p"}
            ),
            "its storage_options have 'proxy_url'",
        ),
        (
            lambda: whale.sinks.delta(
                "az://c/t", storage_options={"CONNECTION_STRING": "AccountName=no-one-sees"}
            ),
            "its storage_options have 'CONNECTION_STRING'",
        ),
    ],
)
def test_credentials_are_not_written(made, message):
    topology = whale.Topology("secret")
    rows = topology.source(whale.sources.iterable([{"n": 1}]), id="rows")
    rows.sink(made(), id="out")
    with pytest.raises(UsageError, match=message) as raised:
        topology.to_tspec()
    assert "no-one-sees" not in str(raised.value)


class Asks(whale.Process):
    """Asks a service about each row."""

    def __init__(self, **given):
        self.given = given

    def on_batch(self, batch, out):
        out.emit(batch)


class Service(whale.sources.Source):
    """Reads from a service."""

    def __init__(self, url, nested=None):
        self.url, self.nested = url, nested

    def schema(self):
        return whale.Schema.of(n="int64")

    def open(self, context):
        raise NotImplementedError

    def describe(self):
        return "a service"


@pytest.mark.parametrize(
    ("source", "arguments", "named"),
    [
        (whale.sources.iterable([{"n": 1}]), {"api_key": "no-one-sees"}, "'ask' .*api_key"),
        (whale.sources.iterable([{"n": 1}]), {"more": [{"Passwd": b"no-one-sees"}]}, "'ask' .*Pas"),
        (Service("https://me:no-one-sees@here"), {"url": "u"}, "'rows' .*url"),
        (Service("host=h password = no-one-sees"), {"url": "u"}, "'rows' .*url"),
        (Service("u", {"token": "no-one-sees"}), {"url": "u"}, "'rows' .*token"),
        (Service("u", {"key": "n", "token": ""}), {"key": "n", "secret": None}, ""),
        (Service("u", {"token": ""}), {"tokenizer": "words", "token_column": "word"}, ""),
    ],
)
def test_what_seems_to_be_a_credential_of_a_user_s_class_is_not_written(source, arguments, named):
    topology = whale.Topology("secret")
    rows = topology.source(source, id="rows")
    asked = rows.shuffle().process(functools.partial(Asks, **arguments), id="ask")
    asked.sink(whale.sinks.collect(), id="out")
    if not named:
        assert "token: ''" in topology.to_tspec()
        return
    with pytest.raises(UsageError, match=f"{named}.* seems to be a credential") as raised:
        topology.to_tspec()
    assert "no-one-sees" not in str(raised.value)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([(1, 2)], "its rows are no list of mappings"),
        ([{"n": 1}] * 1001, "it has 1,001 rows in memory; such files have 1,000 at most"),
        ([{"n": math}], "its argument rows is <module 'math'"),
        (
            [{"n": dt.datetime(2026, 7, 2, tzinfo=ZoneInfo("Europe/Stockholm"))}],
            "has the time 2026-07-02 00:00:00.02:00, whose zone such files cannot have",
        ),
        ([{"n": LOOP}], "nested too deeply, or contains itself"),
    ],
)
def test_rows_in_memory_that_are_not_plain_or_many_are_refused(rows, message):
    topology = whale.Topology("rows")
    source = whale.sources.iterable(
        rows, None if isinstance(rows[0], dict) else {"a": "int64", "b": "int64"}
    )
    topology.source(source, id="rows").sink(sink(), id="out")
    with pytest.raises(UsageError, match=message):
        topology.to_tspec()
