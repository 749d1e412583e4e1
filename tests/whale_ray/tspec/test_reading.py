"""`tspec` files: what they say, and that each mistake is named with its line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import whale_ray as whale
from tests.documents import ROOT
from whale_ray.configs.errors import InputError, UsageError
from whale_ray.optimizer.algorithm import optimize
from whale_ray.optimizer.dataflow import Distribution, OptimizerLimits, SendingCosts
from whale_ray.tspec.building import build_topology
from whale_ray.tspec.conditions import parse_condition
from whale_ray.tspec.dataflows import dataflow_of
from whale_ray.tspec.reading import parse_tspec, read_tspec
from whale_ray.tspec.specification import (
    InputSpec,
    OperatorSpec,
    SpecGrouping,
    SpecKind,
    TopologySpec,
)
from whale_ray.tspec.writing import optimized_spec, tspec_to_yaml

EXAMPLES = sorted((ROOT / "examples" / "tspec").glob("*.yaml"))

HEAD = "tspec: 1\ntopology: t\noperators:\n"
SOURCE = "  s: {source: simulated, rate_per_s: 1000, rows: 3000, row_bytes: 24, dop: 1}\n"
SINK = "  o: {sink: simulated, inputs: [{from: s}], ppt_us: 0}\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "x: the file is empty"),
        ("a: [", "x, line 1: expected the node content"),
        ("tspec: 2\ntopology: t\noperators: {}", "x, line 1: it is of version 2; this is 1"),
        ("topology: t\noperators: {}", "x, line 1: tspec is missing"),
        ("tspec: 1\ntopology: t\noperators: {}", "x, line 3: there is no operator"),
        (HEAD + "  s: 5", "x, line 4: expected a mapping"),
        (
            HEAD + "  s: {}",
            "x, line 4: 's' needs one of source, map, flat_map, filter, .*; found none",
        ),
        (HEAD + "  s: {source: simulated, ppt: 3}", "line 4: unknown field 'ppt'"),
        (
            HEAD + "  s: {source: simulated, dop: 0}",
            "line 4: expected a whole number of at least 1",
        ),
        (HEAD + "  s: {source: simulated, ppt_us: -1}", "line 4: expected a number of at least 0"),
        (
            HEAD + "  s: {source: simulated, ppt_us: soon}",
            "expected a number of at least 0 and at most 10,000,000,000, found 's",
        ),
        (HEAD + "  s: {source: os}", "line 4: 'os' is no import path; write module:name, or simul"),
        (HEAD + "  s: {source: simulated}", "'s' is simulated, so it needs rate_per_s"),
        (HEAD + SOURCE.replace("1000", "0"), "nothing comes at a rate of 0; it must be greater"),
        (HEAD + SOURCE + SOURCE, "x, line 5: 's' is given twice; remove one"),
        (HEAD + SOURCE + SINK.replace("from: s", "from: z"), "line 5: 'o' reads 'z', which is no"),
        (HEAD + SOURCE + "  o: {sink: simulated, ppt_us: 0}", "line 5: nobody feeds 'o'"),
        (
            HEAD
            + SOURCE
            + "  o: {sink: simulated, inputs: [{from: s, grouping: keys}], ppt_us: 0}",
            r"line 5: unknown 'keys' \(did you mean key\?\)",
        ),
        (
            HEAD + SOURCE + "  p: {process: m:n, inputs: [{from: s, grouping: key}]}",
            "line 5: grouping: key and by",
        ),
        (HEAD + SOURCE + "  p: {process: m:n, inputs: [{from: s}]}", "a process needs a grouping"),
        (
            HEAD
            + "  a: {process: m:n, inputs: [{from: b, grouping: all}]}\n"
            + "  b: {process: m:n, inputs: [{from: a, grouping: all}]}\n",
            "line 4: there is a cycle, a → b → a; a topology has none",
        ),
        (  # what reads the cycle is no part of it
            HEAD
            + "  o: {sink: m:n, inputs: [{from: p}]}\n"
            + SOURCE
            + "  p: {process: m:n, inputs: [{from: s, grouping: all}, {from: p, grouping: all}]}\n",
            "line 6: there is a cycle, p → p; a topology has none",
        ),
        (
            HEAD + "  s: {source: m:n, rate_per_s: 0}",
            "line 4: nothing comes at a rate of 0; it must be greater",
        ),
        (
            HEAD + SOURCE + "  f:\n    filter: 'x > ) 3'\n    inputs: [{from: s}]",
            r"line 6: 'x > \) 3' is not an expression",
        ),
        (
            HEAD + SOURCE + "  f: {with_column: 'a, b', inputs: [{from: s}]}",
            "line 5: with_column is one expression",
        ),
        (
            HEAD + SOURCE + "  f: {map: m:n, inputs: [{from: s}], arguments: {1: x}}",
            "line 5: 1 is no name of an argument",
        ),
        (
            HEAD
            + SOURCE
            + "  j:\n    join: inner\n    inputs:\n"
            + "    - {from: s, grouping: key, by: [a, b]}\n    - {from: s, grouping: key, by: a}\n",
            "line 8: a join needs as many columns in by on both sides",
        ),
        (
            HEAD + SOURCE + "  d: {drop_duplicates: soon, inputs: [{from: s, grouping: all}]}",
            "line 5: within is 'soon'",
        ),
        (
            HEAD + SOURCE + "  d: {drop_duplicates: 5 s, inputs: [{from: s, grouping: all}]}",
            "line 5: a drop_duplicates works by key",
        ),
        (
            HEAD + SOURCE + "  d: {drop_duplicates: 5 s, inputs: [{from: s, grouping: global}]}",
            "line 5: drop_duplicates needs by",
        ),
        (
            HEAD + SOURCE + "  j: {join_asof: outer, inputs: [{from: s, grouping: global}]}",
            "line 5: unknown 'outer'; there are left, inner",
        ),
        (
            HEAD + SOURCE + "  j: {join_asof: left, inputs: [{from: s, grouping: global}]}",
            "line 5: a join_asof has two inputs",
        ),
        (
            HEAD + SOURCE + "  j: {join_asof: left, inputs: [[], {from: s, grouping: global}]}",
            "line 5: this side has no input",
        ),
        (
            HEAD + SOURCE + "  j: {join_asof: left, inputs: [[{from: s, grouping: global}] ]}",
            "line 5: a join_asof has two inputs",
        ),
        (
            HEAD + SOURCE + "  j: {join_table: inner, inputs: [{from: s}, {from: s}]}",
            "line 5: a join_table has a stream, which is not grouped, then a table",
        ),
        (
            HEAD
            + SOURCE
            + "  j: {join_table: left, inputs: [{from: s}, {from: s, grouping: all, by: a}]}",
            "line 5: a join_table needs as many columns in by of both",
        ),
        (
            HEAD + SOURCE + "  j: {join_table: outer, inputs: [{from: s}]}",
            "line 5: unknown 'outer'",
        ),
        *(
            (HEAD + f"  s: {{source: 'm:n', arguments: {{a: {odd}}}}}", r"\Ax, line 4: [^\n]+\Z")
            for odd in ("2026-13-45", "0b_", "9" * 5000, "!!int ''", "!!bool x", "!!timestamp x")
        ),
        (HEAD + '  "s\\n": {}\n  "s\\n": {}', r"line 5: 's\\n' is given twice"),
    ],
)
def test_a_mistake_is_named_with_its_line(text, message):
    with pytest.raises(InputError, match=message):
        parse_tspec(text, "x")


FUZZED = """\
  s: {source: simulated, rate_per_s: 1000, rows: 3000, row_bytes: 24, dop: 1, ppt_us: 1}
  p:
    process: simulated
    inputs: [{from: s, grouping: key, by: key, largest_share: 0.5}]
    ppt_us: 1
    ppt_each_us: 1
    fan_out: 1
    row_bytes: 24
    dop: 2
    batch_rows: 5
  o: {sink: simulated, inputs: [{from: p}], ppt_us: 0}
"""
FIELDS = re.findall(r"(\w+): (?=[\w.]+[,}\n])", FUZZED)
VALUES = st.sampled_from(
    ["0", "-1", "99999999999", "1e12", "1e300", "1e-300", "9" * 400, ".nan", ".inf", "-.inf"]
    + ["null", "true", "soon", "''", "[1]", "{a: 1}", "&a [*a]", "2026-01-01", "!!binary x", "!t x"]
    + ["2026-13-45", "0x_", "!!int x", "!!float ''", "!!bool x", "!!timestamp x"]
)


@given(st.sampled_from(range(len(FIELDS))), VALUES)
def test_any_value_of_any_field_is_optimized_or_refused_with_its_line(place, value):
    at = list(re.finditer(r"(\w+): (?=[\w.]+[,}\n])([\w.]+)", FUZZED))[place]
    text = HEAD + FUZZED[: at.start(2)] + value + FUZZED[at.end(2) :]
    line = len((HEAD + FUZZED[: at.start()]).splitlines())
    refusal = ""
    try:
        dataflow = dataflow_of(parse_tspec(text, "x"))
    except InputError as error:
        refusal = str(error)
    if refusal:
        assert re.fullmatch(rf"x, line {line}: [^\n]+", refusal)
        return
    found = optimize(dataflow, SendingCosts(20_000, 0.2), OptimizerLimits(cores=64))
    assert 0 < found.throughput <= 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEAD + "  s: " + "[" * 900 + "]" * 900, "x: its values are nested too deeply"),
        (
            HEAD + SOURCE + "  f: {filter: '" + "-" * 100_000 + "a', inputs: [{from: s}]}",
            "x, line 5: '-+ is nested too deeply|x: its values are nested too deeply",
        ),
        (HEAD + SOURCE + "\0", "x, line 5: the character '.x00' is not allowed"),
        (HEAD + "#" * (4 << 20), "x: it has 4,194,[0-9]* characters; at most 4,194,304 are read"),
        (HEAD.replace(": t", ": é") + SOURCE, "x, line 2: topology name 'é': use 1 to 64 letters"),
        (HEAD + "  'a b': {source: m:n}", "x, line 4: operator id 'a b': use 1 to 64 letters"),
        (
            HEAD + SOURCE.replace("24", "65537"),
            "x, line 4: rows of a simulated source have at most 65,536 bytes",
        ),
        (
            HEAD + SOURCE.replace("24", "&h [&g [&f [&e [x, x], *e, *e], *f, *f], *g, *g, *g, *g]"),
            r"at most 16,777,216, found \[\[\[",
        ),
        (
            HEAD
            + "  s:\n    source: m:n\n    arguments:\n      x0: &x0 {a: 1, b: 2}\n"
            + "".join(
                f"      x{level}: &x{level} {{<<: [{', '.join([f'*x{level - 1}'] * 9)}]}}\n"
                for level in range(1, 12)
            ),
            "x, line 7: more than 1,000 entries are merged",
        ),
    ],
)
def test_a_file_that_is_made_to_harm_is_refused(text, message):
    with pytest.raises(InputError, match=message):
        parse_tspec(text, "x")


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InputError, match=r"none\.yaml: cannot be read as a tspec file: No such"):
        read_tspec(tmp_path / "none.yaml")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: Path(path).stem)
def test_examples_are_optimized_and_can_be_planned(path):
    spec = read_tspec(path)
    costs = SendingCosts(20_000, 0.2)
    optimization = optimize(dataflow_of(spec), costs, OptimizerLimits(cores=64))
    assert optimization.throughput == 1
    optimized = parse_tspec(tspec_to_yaml(optimized_spec(spec, optimization.choices)), "again")
    again = optimize(dataflow_of(optimized), costs, OptimizerLimits(cores=64))
    assert again.choices == optimization.choices
    assert "Physical plan" in str(build_topology(optimized).explain(2))


def test_chains_are_one_node_that_costs_what_its_operators_cost():
    text = (
        HEAD
        + "  s: {source: a:b, rate_per_s: 1e6, dop: 2, ppt_us: 1}\n"
        + "  f: {filter: 'x > 5', inputs: [{from: s}], ppt_us: 2, fan_out: 0.5, row_bytes: 10}\n"
        + "  g: {filter: 'x > 7', inputs: [{from: f}], ppt_us: 4, fan_out: 0.1, row_bytes: 20}\n"
        + "  p: {process: a:b, inputs: [{from: f, grouping: all}], ppt_us: 3, ppt_each_us: 1}\n"
        + "  o:\n    sink: a:b\n    ppt_us: 0\n"
        + "    inputs: [{from: g, grouping: key, by: x, largest_share: 0.2}]\n"
    )
    dataflow = dataflow_of(parse_tspec(text, "x"))
    assert [node.id for node in dataflow.nodes] == ["s", "p", "o"]
    source, process, _ = dataflow.nodes
    assert source.ppt_ns == pytest.approx(1_000 + 2_000 + 0.5 * 4_000)
    assert (source.rate_per_s, source.dop) == (1e6, 2)
    assert (process.ppt_ns, process.ppt_each_ns) == (3_000, 1_000)
    to_all, by_key = dataflow.edges
    assert (to_all.selectivity, to_all.row_bytes) == (0.5, 10)
    assert to_all.distribution is Distribution.ALL
    assert by_key.selectivity == pytest.approx(0.05)
    assert (by_key.source, by_key.target, by_key.largest_share) == ("s", "o", 0.2)


def test_the_table_of_a_join_is_no_input_of_what_is_optimized():
    """The join is fused with its stream; the table, which is read before, needs no rate."""
    text = (
        HEAD
        + SOURCE
        + "  t: {source: a:b}\n"
        + "  f: {filter: 'k > 5', inputs: [{from: t}]}\n"
        + "  j: {join_table: left, ppt_us: 2, row_bytes: 9, inputs: [{from: s, by: k},"
        + " {from: f, grouping: all, by: k}]}\n"
        + "  o: {sink: simulated, inputs: [{from: j, grouping: shuffle}], ppt_us: 0}\n"
    )
    spec = parse_tspec(text, "x")
    dataflow = dataflow_of(spec)
    assert [node.id for node in dataflow.nodes] == ["s", "o"]
    assert [(edge.source, edge.target, edge.row_bytes) for edge in dataflow.edges] == [
        ("s", "o", 9)
    ]
    assert dataflow.nodes[0].ppt_ns >= 2_000
    found = optimize(dataflow, SendingCosts(20_000, 0.2), OptimizerLimits(cores=4))
    written = optimized_spec(spec, found.choices)
    assert written.operator("t") == spec.operator("t")
    assert written.operator("o").dop == 1
    both = text + "  q: {sink: simulated, inputs: [{from: f, grouping: shuffle}], ppt_us: 0}\n"
    with pytest.raises(InputError, match="line 5: source 't' needs rate_per_s"):
        dataflow_of(parse_tspec(both, "x"))


def test_what_is_sent_needs_its_size_to_be_optimized():
    text = HEAD + SOURCE.replace("simulated", "a:b").replace("row_bytes: 24", "ppt_us: 1")
    text += "  o: {sink: a:b, inputs: [{from: s, grouping: shuffle}], ppt_us: 1}"
    with pytest.raises(InputError, match="x, line 4: 's' needs row_bytes to be optimized"):
        dataflow_of(parse_tspec(text, "x"))


@pytest.mark.parametrize(
    ("operator", "missing"),
    [
        ("  s: {source: a:b, ppt_us: 1}\n", "line 4: source 's' needs rate_per_s"),
        (SOURCE + "  o: {sink: a:b, inputs: [{from: s}]}\n", "line 5: sink 'o' needs ppt_us"),
        (
            SOURCE + "  f: {filter: 'x > 5', inputs: [{from: s}]}\n",
            "line 5: filter 'f' needs ppt_us",
        ),
    ],
)
def test_a_cost_that_is_not_stated_is_named_and_not_taken_for_nothing(operator, missing):
    with pytest.raises(InputError, match=f"x, {missing} to be optimized; or let it be measured"):
        dataflow_of(parse_tspec(HEAD + operator, "x"))


words = st.text("abcdefgh", min_size=1, max_size=5)
numbers = st.floats(0, 1e6).map(lambda number: round(number, 3))


@st.composite
def specs(draw: st.DrawFn) -> TopologySpec:
    rate_per_s = draw(numbers.filter(bool))
    made = [OperatorSpec("s", SpecKind.SOURCE, "m:n", rate_per_s=rate_per_s, dop=1)]
    for number in range(draw(st.integers(0, 3))):
        grouping = draw(st.sampled_from([one for one in SpecGrouping if one != "forward"]))
        by = tuple(draw(st.lists(words, min_size=1))) if grouping is SpecGrouping.KEY else ()
        feed = InputSpec(draw(st.sampled_from(made)).id, grouping, by, draw(st.floats(0, 1)))
        made.append(
            OperatorSpec(
                f"p{number}",
                SpecKind.PROCESS,
                "m:n",
                draw(st.dictionaries(words, st.integers() | words)),
                (feed,),
                draw(st.none() | st.integers(1, 9)),
                draw(st.none() | st.integers(1, 9)),
                draw(st.none() | numbers),
                draw(numbers),
                draw(numbers),
                draw(st.none() | numbers),
            )
        )
    return TopologySpec("t", tuple(made))


@given(specs())
def test_what_is_written_is_read_again(spec):
    text = tspec_to_yaml(spec)
    read = parse_tspec(text, "x")
    assert tspec_to_yaml(read) == text
    assert yaml.safe_load(text)["topology"] == "t"
    assert [(one.id, one.inputs, one.dop) for one in read.operators] == [
        (one.id, one.inputs, one.dop) for one in spec.operators
    ]


# --- conditions -------------------------------------------------------------------------------

ROWS = [{"km": km, "free": free} for km in (-1, 0, 5, 7) for free in (True, False)]


@pytest.mark.parametrize(
    ("text", "function"),
    [
        ("km > 5", lambda km, free: km > 5),
        ("km * 2 + 1 <= 11 and not free", lambda km, free: km * 2 + 1 <= 11 and not free),
        ("free or km == -1", lambda km, free: free or km == -1),
        (
            "(km - 1) % 2 == 0 and (free or km < 3)",
            lambda km, free: (km - 1) % 2 == 0 and (free or km < 3),
        ),
    ],
)
def test_a_condition_selects_what_python_selects(text, function):
    topology = whale.Topology("t")
    rows = topology.source(whale.sources.iterable(ROWS), id="rows").filter(parse_condition(text))
    rows.sink(whale.sinks.collect(), id="out")
    found = whale.run(topology).results("out").to_arrow().to_pylist()
    assert found == [row for row in ROWS if function(**row)]


@pytest.mark.parametrize(
    "text", ["__import__('os')", "km.real > 1", "a[0]", "lambda: 1", "1 < km < 3", "km >", "[1]"]
)
def test_a_condition_that_is_more_than_that_is_refused(text):
    with pytest.raises(UsageError, match="more than columns|is not an expression"):
        parse_condition(text)


def test_an_operator_that_cannot_be_made_is_named_with_its_line(tmp_path, monkeypatch):
    (tmp_path / "broken_module.py").write_text("raise KeyError('HOME')\n")
    monkeypatch.syspath_prepend(tmp_path)
    for what, message in [
        ("os:nothing", "line 4: module 'os' has no 'nothing'"),
        ("no.such.module:x", "line 4: 'no.such.module:x' cannot be imported"),
        ("broken_module:x", "line 4: 'broken_module:x' cannot be imported: KeyError: 'HOME'"),
        ("math:pi", "line 4: 'math:pi' is 3.14.*, which cannot be called"),
        ("operator:neg", "line 4: 'operator:neg' does not take these arguments"),
        (
            "whale_ray.sources:parquet",
            "line 4: 'whale_ray.sources:parquet' does not take these arguments: missing a"
            r" required argument: 'path'; it takes \(",
        ),
    ]:
        text = HEAD + f"  s: {{source: '{what}', dop: 1, arguments: {{row: 3}}}}\n" + SINK
        with pytest.raises(InputError, match=message):
            build_topology(parse_tspec(text, "x"))


def test_a_source_that_raises_is_named_with_its_line():
    made = "{source: 'textwrap:dedent', arguments: {text: 3}, dop: 1}"
    with pytest.raises(InputError, match="line 4: 'textwrap:dedent' raised TypeError"):
        build_topology(parse_tspec(HEAD + f"  s: {made}\n" + SINK, "x"))


def test_a_process_that_does_not_take_its_arguments_is_refused_before_the_job_starts():
    text = HEAD + SOURCE + "  p:\n    process: fractions:Fraction\n    arguments: {nothing: 1}\n"
    text += "    inputs: [{from: s, grouping: shuffle}]\n"
    message = "line 6: 'fractions:Fraction' does not take these arguments: got an unexpected"
    with pytest.raises(InputError, match=message):
        build_topology(parse_tspec(text, "x"))
