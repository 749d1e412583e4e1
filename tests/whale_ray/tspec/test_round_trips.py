"""Every example and application as a tspec file: it comes back equal, or the reason is told."""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

import whale_ray as whale
from tests.documents import ROOT
from tests.whale_ray.applications.options_market.markets import small_book
from whale_ray import applications, functions
from whale_ray.applications.cluster_monitoring import schemas as monitoring
from whale_ray.applications.cluster_monitoring.topology import build as build_monitoring
from whale_ray.applications.linear_road.schemas import REPORTS
from whale_ray.applications.linear_road.topology import build as build_linear_road
from whale_ray.applications.nexmark.command import build as build_nexmark
from whale_ray.applications.nexmark.queries import QUERIES
from whale_ray.applications.nexmark.schemas import SCHEMAS
from whale_ray.applications.options_market.topology import build as build_options
from whale_ray.applications.read_only_count.topology import build as build_count
from whale_ray.applications.ride_hailing.topology import build as build_ride_hailing
from whale_ray.applications.slash_nexmark.queries import QUERIES as SLASH_QUERIES
from whale_ray.applications.slash_nexmark.queries import build as build_slash
from whale_ray.applications.slash_nexmark.schemas import SCHEMAS as SLASH_SCHEMAS
from whale_ray.applications.stock_exchange.schemas import ORDERS
from whale_ray.applications.stock_exchange.topology import build as build_exchange
from whale_ray.applications.taxi_regions.generator import TRIPS
from whale_ray.applications.taxi_regions.topology import build as build_taxi
from whale_ray.applications.yahoo.generator import ADS_SCHEMA, EVENTS_SCHEMA
from whale_ray.applications.yahoo.topology import build as build_yahoo
from whale_ray.configs.errors import InputError, UsageError
from whale_ray.plan.logical import LogicalPlan, OperatorKind
from whale_ray.tspec.arguments import named_arguments
from whale_ray.tspec.building import build_topology
from whale_ray.tspec.reading import parse_tspec


class Inputs:
    """Empty Parquet files, as sources."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def source(self, schema: pa.Schema, columns=None) -> whale.sources.Source:
        path = self.folder / f"{abs(hash(str(schema)))}.parquet"
        pq.write_table(schema.empty_table(), path)
        return whale.sources.parquet(path, columns=columns)

    def of(self, schemas):
        return lambda name, columns: self.source(schemas[name], columns and list(columns))


def sink():
    return whale.sinks.collect()


POSITIONS = pa.schema(
    {
        "vehicle_id": pa.string(),
        "event_time": pa.timestamp("s"),
        "lat_e5": pa.int32(),
        "lon_e5": pa.int32(),
        "occupied": pa.bool_(),
    }
)
REQUESTS = pa.schema(
    {
        "request_id": pa.int64(),
        "request_time": pa.timestamp("s"),
        "pickup_lat": pa.float64(),
        "pickup_lon": pa.float64(),
    }
)
APPLICATIONS: dict[str, Callable[[Inputs], whale.Topology]] = {
    "cluster-monitoring": lambda i: build_monitoring(i.source(monitoring.SAMPLES), sink()),
    "linear-road": lambda i: build_linear_road(i.source(REPORTS), sink()),
    "read-only-count": lambda i: build_count(i.source(pa.schema({"key": pa.int64()})), sink()),
    "ride-hailing": lambda i: build_ride_hailing(i.source(POSITIONS), i.source(REQUESTS), sink()),
    "stock-exchange": lambda i: build_exchange(i.source(ORDERS.to_arrow()), sink(), sink()),
    **{
        f"nexmark-{name}": lambda i, name=name: build_nexmark(name, i.of(SCHEMAS), sink())
        for name in QUERIES
    },
    **{
        f"slash-nexmark-{name}": lambda i, name=name: build_slash(name, i.of(SLASH_SCHEMAS), sink())
        for name in SLASH_QUERIES
    },
    "options-market": lambda _: build_options(small_book(), sink(), sink()),
    "taxi-regions": lambda i: build_taxi(i.source(TRIPS), sink()),
    "yahoo": lambda i: build_yahoo(i.source(EVENTS_SCHEMA), ADS_SCHEMA.empty_table(), sink()),
}


def test_every_application_is_among_these():
    folders = {path.parent.name for path in Path(applications.__file__).parent.glob("*/command.py")}
    for folder in folders - {"shared"}:
        name = folder.replace("_", "-")
        assert any(one == name or one.startswith(f"{name}-") for one in APPLICATIONS)


LACKING = {"options-market": "'lines' .* its argument listed is array"}
"""What cannot be written, and what is told."""


def operators(logical: LogicalPlan) -> list[tuple]:
    """Return all that a plan says of its operators, but where their code stands.

    Paths are written as absolute ones, since a file may be read elsewhere.
    """
    return [
        (
            *(node.id, node.kind, node.inputs, node.parallelism, node.event_time, node.outputs),
            *(node.event_time_order, node.has_event_time, node.late_outputs, node.request),
            *(node.declared_state, node.state_reason, node.order_reason),
            described(node.payload),
        )
        for node in logical.nodes
    ]


def described(payload: object) -> str:
    """Return what a source, transform or window says of itself; of a process its name."""
    if isinstance(payload, functools.partial):
        return f"{payload.func.__qualname__} {named_arguments(payload)}"
    if hasattr(payload, "describe"):
        return payload.describe().replace(f"{Path.cwd()}/", "")
    return getattr(payload, "__qualname__", "")


def check(topology: whale.Topology) -> whale.Topology:
    """Write a topology, read it again, compare, and return what was read."""
    text = topology.to_tspec()
    again = build_topology(parse_tspec(text, "again"))
    assert again.to_tspec() == text
    assert operators(again.logical_plan()) == operators(topology.logical_plan())
    return again


@pytest.mark.parametrize("name", APPLICATIONS)
def test_an_application_comes_back_equal_or_the_reason_is_told(name, tmp_path):
    topology = APPLICATIONS[name](Inputs(tmp_path))
    if name not in LACKING:
        check(topology)
        return
    with pytest.raises(UsageError, match=LACKING[name]):
        topology.to_tspec()


EXAMPLES = {
    "as_of_join": "",
    "clean_with_expressions": "",
    "nearest": "",
    "own_transport": "'squares' .*lambda> cannot be imported; put it into a module",
    "sessions": "",
    "table_lookup": "",
    "tweets": "",
    "word_count": "",
}


class Submitted(BaseException):
    """In the place of a run."""


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_comes_back_equal_or_the_reason_is_told(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TWEETS", "10")
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    found, run = [], whale.run

    def submit(topology, **_):
        found.append(topology)
        raise Submitted

    monkeypatch.setattr(whale, "run", submit)
    monkeypatch.setattr(whale, "submit", submit)
    with pytest.raises(Submitted):
        importlib.import_module(name).main()
    if EXAMPLES[name]:
        with pytest.raises(UsageError, match=EXAMPLES[name]):
            found[0].to_tspec()
        return
    again = check(found[0])
    if name == "as_of_join":
        rows = [
            sorted(map(str, run(one).results("out").to_arrow().to_pylist()))
            for one in (found[0], again)
        ]
        assert rows[0] == rows[1] != []


def small(row):
    return row.n < 3


def doubled(batch):
    return {"n": batch["n"] * 2, "t": batch["t"]}


class Both(whale.CoProcess):
    """Passes on the rows of its left side."""

    takes_late_rows = True

    def on_left(self, batch, out):
        out.emit(batch)

    def on_right(self, batch, out):
        pass


def test_outputs_unions_null_keys_schemas_and_batches_come_back(tmp_path):
    inputs = Inputs(tmp_path)
    rows = inputs.source(pa.schema({"n": pa.int64(), "t": pa.timestamp("us")}))
    topology = whale.Topology("all")
    read = topology.source(
        rows, id="rows", event_time="t", max_out_of_order_ms=500, idle_after_ms=50, parallelism=2
    )
    mapped = read.map(
        whale.columns(doubled), id="mapped", schema={"n": "int64", "t": "timestamp[us]"}
    )
    few = mapped.shuffle().filter(small, id="few", parallelism=3).in_batches_of(7)
    some = few.filter(
        functions.round(functions.col("n") / 3, 1).isin(0.3, 0.7) | functions.col("n").is_null(),
        id="some",
    )
    counted = some.union(few, id="counts-inputs").group_by(
        whale.window("t", "10 s", slide="5 s"), "n"
    )
    counts = counted.agg(
        functions.count().alias("rows"), functions.max("n"), id="counts", output_mode="update"
    )
    late = counts.late.key_by("n", on_null="drop")
    both = late.connect(mapped.broadcast()).process(Both, id="both", event_time_order=False)
    both.sink(whale.sinks.csv(tmp_path / "late", overwrite=True), id="late")
    left, right = read.union(mapped, id="pairs-inputs"), mapped.union(few, id="pairs-inputs-2")
    pairs = left.join(right, on="n", within=whale.interval("-1 s", "1 s"), how="semi", id="pairs")
    pairs.sink(whale.sinks.csv(tmp_path / "pairs", overwrite=True), id="pairs-out")
    counts.sink(whale.sinks.collect(), id="out")
    text = check(topology).to_tspec()
    assert "output: late" in text
    assert "on_null: drop" in text
    joined = yaml.safe_load(text)["operators"]["pairs"]
    assert [[one["from"] for one in side] for side in joined["inputs"]] == [
        ["rows", "mapped"],
        ["mapped", "few"],
    ]


def test_joins_with_tables_and_as_of_and_first_rows_come_back(tmp_path):
    inputs = Inputs(tmp_path)
    topology = whale.Topology("all-joins")
    trades, quotes, names, changed = (
        topology.source(
            inputs.source(pa.schema({"symbol": pa.string(), "at": pa.timestamp("us"), name: kind})),
            id=f"{name}s",
            event_time="at",
        )
        for name, kind in (
            *(("trade", pa.int64()), ("quote", pa.float64())),
            *(("name", pa.string()), ("op", pa.string())),
        )
    )
    firsts = trades.drop_duplicates("symbol", "trade", within="90 s", id="firsts", parallelism=2)
    firsts.late.sink(sink(), id="late")
    quoted = quotes.select("symbol", "quote", "at")
    renamed = quoted.select(functions.col("symbol").alias("of"), "quote")
    near = firsts.join_asof(
        renamed,
        by={"symbol": "of"},
        strategy="forward",
        tolerance="1 second",
        how="inner",
        allow_exact_matches=False,
        id="near",
    )
    names = names.select(functions.col("symbol").alias("key"), "name")
    changed = changed.select(
        functions.col("symbol").alias("key"), functions.col("op").alias("name"), "op"
    )
    named = near.join_table(
        names,
        on={"symbol": "key"},
        how="left",
        changes=changed,
        delete_when=functions.col("op") == "gone",
        id="named",
        parallelism=3,
    )
    named.join_asof(quoted.select(functions.col("quote").alias("last")), id="last").sink(
        sink(), id="out"
    )
    text = check(topology).to_tspec()
    assert "drop_duplicates: 90 seconds" in text
    assert "delete_when: (op == 'gone')" in text


class Several(whale.Process):
    """Gets functions in a list and in a mapping."""

    def __init__(self, functions=(), named=None):
        self.functions, self.named = functions, named

    def on_batch(self, batch, out):
        out.emit(batch)


def test_functions_within_arguments_come_back(tmp_path):
    rows = Inputs(tmp_path).source(pa.schema({"n": pa.int64()}))
    topology = whale.Topology("nested")
    made = functools.partial(Several, functions=[small, 3], named={"twice": [doubled]})
    read = topology.source(rows, id="rows").shuffle().process(made, id="several")
    read.sink(whale.sinks.collect(), id="out")
    again = build_topology(parse_tspec(topology.to_tspec(), "again"))
    assert again.logical_plan().node("several").payload.keywords == made.keywords
    literal = functools.partial(Several, named={"import": "a:b"})
    topology = whale.Topology("ambiguous")
    read = topology.source(rows, id="rows").shuffle().process(literal, id="several")
    read.sink(whale.sinks.collect(), id="out")
    with pytest.raises(UsageError, match=r"argument named is \{'import': 'a:b'\}"):
        topology.to_tspec()


@pytest.mark.parametrize("name", ["id", "parallelism", "one", "method"])
def test_arguments_that_other_fields_say_or_that_nothing_takes_are_refused(name):
    text = (
        "tspec: 1\ntopology: t\noperators:\n"
        "  s: {source: simulated, rate_per_s: 9, row_bytes: 8, dop: 1}\n"
        f"  m: {{map: 'math:floor', inputs: [{{from: s}}], arguments: {{{name}: 1}}}}\n"
    )
    with pytest.raises(InputError, match=rf"x, line 5: map 'm' does not take .*{name}"):
        build_topology(parse_tspec(text, "x"))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("{import: 'math:floor', arguments: 5}", "the arguments of 'math:floor' are no mapping"),
        ("{import: 'math:floor', arguments: {y: 5}}", "'math:floor' does not take these arguments"),
        ("{import: 'math:pi', arguments: {}}", "'math:pi' is 3.14.*, which cannot be called"),
        ("{import: 'math:flo.or'}", "module 'math' has no 'flo.or'"),
        (
            "{import: 'whale_ray:Schema.of', arguments: {n: int65}}",
            ".*int65",
        ),
    ],
)
def test_a_value_that_cannot_be_made_is_refused_with_its_line(value, message):
    text = (
        "tspec: 1\ntopology: t\noperators:\n"
        "  s: {source: simulated, rate_per_s: 9, row_bytes: 8, dop: 1}\n"
        f"  p: {{process: '{__name__}:Several', inputs: [{{from: s, grouping: all}}],\n"
        f"    arguments: {{named: {{x: [{value}]}}}}}}\n"
    )
    with pytest.raises(InputError, match=f"x, line 5: {message}"):
        build_topology(parse_tspec(text, "x"))


def test_values_that_stand_for_very_many_are_resolved_once_each():
    lists = ", ".join(f"&l{level} [*l{level - 1}, *l{level - 1}]" for level in range(1, 40))
    text = (
        "tspec: 1\ntopology: t\noperators:\n"
        "  s: {source: simulated, rate_per_s: 9, row_bytes: 8, dop: 1}\n"
        f"  p: {{process: '{__name__}:Several', inputs: [{{from: s, grouping: all}}],\n"
        f"    arguments: {{functions: [&l0 [{{import: 'math:floor'}}], {lists}]}}}}\n"
        "  o: {sink: simulated, inputs: [{from: p}], ppt_us: 0}\n"
    )
    made = build_topology(parse_tspec(text, "x")).logical_plan().node("p").payload
    found = made.keywords["functions"]
    assert found[0] == [math.floor]
    assert found[39][0] is found[39][1] is found[38]


def test_a_column_whose_name_python_would_change_comes_back(tmp_path):
    inputs = Inputs(tmp_path)
    topology = whale.Topology("names")
    rows = topology.source(
        inputs.source(pa.schema({"\ufb01": pa.int64(), "é": pa.int64()})), id="r"
    )
    kept = rows.filter(functions.col("\ufb01") > functions.col("é"), id="kept")
    kept.sink(sink(), id="out")
    assert "filter: (col('\ufb01') > é)" in check(topology).to_tspec()


@pytest.mark.parametrize("reader", ["s", "s" * 64])
def test_a_union_has_an_id_that_no_operator_has(reader, tmp_path):
    inputs = Inputs(tmp_path)
    topology = whale.Topology("ids")
    ids = ("a", "s-inputs", "s" * 57 + "-inputs")
    first, *others = (
        topology.source(inputs.source(pa.schema({"n": pa.int64()})), id=name) for name in ids
    )
    first.union(*others).select("n", id=reader).sink(sink(), id="out")
    text = topology.to_tspec()
    again = build_topology(parse_tspec(text, "again"))
    assert again.to_tspec() == text
    (union,) = (node for node in again.logical_plan().nodes if node.kind is OperatorKind.UNION)
    assert union.id == f"{reader[:55]}-inputs-2"
