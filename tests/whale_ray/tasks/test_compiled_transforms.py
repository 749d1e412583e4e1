"""Filters and projections as one loop in a job: rows, counts and event times stay as they are."""

from __future__ import annotations

from pathlib import Path
from threading import Event
from threading import enumerate as enumerate_threads
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import whale_ray as whale
from whale_ray import functions
from whale_ray.operators.compiled import chain_loops
from whale_ray.transport import generated
from whale_ray.transport.clock import VirtualClock

ROWS = 1000
IF_UNIQUE = "if the table has no key twice, and at most 262,144 rows"
LATE: Any = {"output_mode": "append", "aggregation": "late_merge"}


def _table() -> pa.Table:
    numbers = np.arange(ROWS)
    return pa.table(
        {
            "at": pa.array(numbers, pa.timestamp("ms")),
            "n": pa.array([None if n % 11 == 0 else int(n) for n in numbers], pa.int32()),
            "kind": pa.array([("view", "click", "purchase")[n % 3] for n in numbers]),
        }
    )


def _topology() -> whale.Topology:
    topology = whale.Topology("loops")
    rows = topology.source(whale.sources.arrow(_table()), id="rows", event_time="at")
    views = rows.filter(whale.col("kind") == "view", id="views").select(
        "at", "kind", (whale.col("n") * 2).alias("twice"), id="twice"
    )
    loud = views.with_column("loud", functions.upper("kind"), id="loud")
    few = loud.filter(whale.col("twice") % 4 == 0, id="few")
    few.filter(whale.col("twice") > 100, id="high").sink(whale.sinks.collect(), id="high-rows")
    windows = few.group_by(whale.window("at", "100 milliseconds"))
    windows.agg(functions.sum("twice").alias("total")).sink(whale.sinks.collect(), id="totals")
    return topology


def _ran(mode: str) -> tuple[list[Any], dict[str, tuple[int, int]]]:
    settings = {"runtime.pipelines": mode, "runtime.source_batch_rows": 64}
    # Else a slow machine's partial aggregate passes groups on before their window closes.
    job = whale.run(_topology(), settings=settings, clock=VirtualClock())
    results = [job.results(sink).to_arrow().to_pylist() for sink in ("high-rows", "totals")]
    return results, {
        one.operator_id: (one.rows_in, one.rows_out) for one in job.metrics().operators
    }


def test_what_ends_a_chain_interpreted_is_explained() -> None:
    topology = whale.Topology("ends")
    rows = topology.source(whale.sources.arrow(_table()), id="rows")
    kept = rows.filter(whale.col("n") > 2, id="kept")
    kept.select(functions.upper("kind").alias("loud"), id="loud").sink(whale.sinks.collect())
    explained = str(topology.explain())
    assert "upper, which has no compiled form, in upper(kind)" in explained


def test_compiled_and_interpreted_give_the_same_rows_and_counts() -> None:
    interpreted, compiled = _ran("interpreted"), _ran("compiled")
    assert compiled == interpreted
    (high, totals), counts = compiled
    expected = [2 * n for n in range(ROWS) if n % 3 == 0 and n % 11 and n % 2 == 0]
    assert [row["twice"] for row in high] == [twice for twice in expected if twice > 100]
    assert sum(row["total"] for row in totals) == sum(expected)
    assert counts["views"] == (ROWS, 334)
    assert counts["few"] == (334, len(expected))


def _pipelines(topology: whale.Topology, mode: str = "auto") -> dict[str, str]:
    """Return what `explain` says of each operator's pipeline."""
    explained = topology.explain(settings={"runtime.pipelines": mode})
    _, _, after = str(explained).partition("Pipelines\n")
    lines = after.partition("\n\n")[0].splitlines()[1:-1]
    return {name: said.rstrip() for name, said in (line.split(maxsplit=1) for line in lines)}


def test_explain_names_the_loop_of_each_operator_and_why_others_have_none() -> None:
    lines = _pipelines(_topology())
    assert lines["views"].split("  ")[0] == "compiled loop"
    assert lines["views"].endswith("views → twice")
    assert lines["loud"].endswith("upper, which has no compiled form, in upper(kind)")
    assert lines["few"].rstrip() == "compiled loop"
    assert lines["rows"].startswith("interpreted")


def test_explain_knows_that_a_loop_may_begin_where_another_ends() -> None:
    topology = whale.Topology("several-loops")
    table = pa.table({"n": pa.array([1, 2], pa.int32()), "weight": [1, 2]})
    rows = topology.source(whale.sources.arrow(_table()), id="rows", event_time="at")
    weighed = rows.join_table(table, on="n", id="weighed").filter(whale.col("weight") > 1, id="few")
    loud = weighed.filter(functions.upper("kind") == "VIEW", id="loud")
    twice = loud.select("n", id="number").with_column("twice", whale.col("n") * 2, id="twice")
    totals = twice.group_by("n").agg(functions.sum("twice").alias("total"), id="totals", **LATE)
    totals.sink(whale.sinks.collect())
    lines = _pipelines(topology)
    assert lines["weighed"].endswith(f"compiled loop  {IF_UNIQUE}")
    assert lines["few"] == "compiled loop"
    assert lines["loud"].startswith("interpreted    upper, which has no compiled form,")
    for name in ("number", "twice", "totals.partial"):
        assert lines[name].endswith("compiled loop  number → twice → totals.partial")


def test_explain_says_of_each_operator_why_it_is_in_no_loop_itself() -> None:
    topology = whale.Topology("reasons")
    rows = topology.source(whale.sources.arrow(_table()), id="rows", event_time="at")
    chosen = rows.select("n", "kind", id="chosen")
    loud = chosen.filter(functions.upper("kind") == "VIEW", id="loud")
    totals = loud.group_by("n").agg(functions.max("kind").alias("last"), id="totals", **LATE)
    totals.sink(whale.sinks.collect())
    lines = _pipelines(topology)
    assert lines["chosen"].endswith("it only chooses or renames columns")
    assert lines["loud"].endswith("upper, which has no compiled form, in upper(kind)")
    assert lines["totals.partial"].endswith("max(kind) AS last, which has no compiled form")


def _with_table(names: list[str]) -> whale.Topology:
    """Return a topology that joins each view with the names of its number's last digit."""
    topology = whale.Topology("looked-up")
    table = pa.table({"digit": pa.array([n % 10 for n in range(len(names))]), "name": names})
    rows = topology.source(whale.sources.arrow(_table()), id="rows", event_time="at")
    views = rows.filter(whale.col("kind") == "view", id="views").select(
        "at", (whale.col("n") % 10).cast("bigint").alias("digit"), id="digits"
    )
    named = views.join_table(table, on="digit", id="names").select("at", "name", id="few-columns")
    named.sink(whale.sinks.collect(), id="out")
    return topology


def test_a_table_join_is_part_of_the_loop_if_no_key_is_twice_in_the_table() -> None:
    digits = [n % 10 for n in range(ROWS) if n % 3 == 0 and n % 11]
    for names in (["zero", "one", "two"], [f"{n}" for n in range(12)]):
        found = {}
        for mode in ("interpreted", "compiled"):
            job = whale.run(_with_table(names), settings={"runtime.pipelines": mode})
            counts = {
                one.operator_id: (one.rows_in, one.rows_out) for one in job.metrics().operators
            }
            found[mode] = job.results("out").to_arrow().to_pylist(), counts
        assert found["compiled"] == found["interpreted"]
        rows, counts = found["compiled"]
        expected = [name for d in digits for n, name in enumerate(names) if n % 10 == d]
        assert [row["name"] for row in rows] == expected
        assert counts["names"] == (334, len(expected))
    assert _pipelines(_with_table(["zero"]))["names"].endswith(
        f"compiled loop  views → digits → names → few-columns; {IF_UNIQUE}"
    )


@pytest.mark.parametrize("mode", ["auto", "compiled", "interpreted"])
def test_explain_says_that_joins_build_and_probe_in_one_loop_and_within_sessions_not(
    mode: str,
) -> None:
    topology = whale.Topology("joins")
    table = pa.table({"at": pa.array([0], pa.timestamp("us")), "n": [1], "word": ["a"]})
    one, two = (
        topology.source(whale.sources.arrow(table), id=name, event_time="at").select("n", "word")
        for name in ("one", "two")
    )
    window = whale.window("10 seconds")
    one.join(two, on="n", how="semi", within=window, id="numbers").sink(whale.sinks.collect())
    one.join(two, on="word", how="semi", within=window, id="words").sink(whale.sinks.collect())
    one.join(two, on=["n", "word"], within=window, id="both").sink(whale.sinks.collect())
    sessions = whale.session_window("10 seconds")
    one.join(two, on="n", how="semi", within=sessions, id="ends").sink(whale.sinks.collect())
    lines = _pipelines(topology, mode)
    assert "a compiled pass assigns event times" in lines["one"]
    for name in ("numbers", "words", "both"):
        assert lines[name].endswith("compiled loop  build and probe, once per batch")
    assert lines["ends"].endswith("sessions are joined once they have ended")


def test_explain_knows_that_texts_which_stay_codes_are_searched_once_each(tmp_path: Path) -> None:
    table = pa.table({"kind": pa.array(["view"] * 9).dictionary_encode(), "n": range(9)})
    with pa.ipc.new_file(tmp_path / "a.arrow", table.schema) as file:
        file.write_table(table)
    topology = whale.Topology("coded")
    mapped = topology.source(whale.sources.ipc(tmp_path / "a.arrow"), id="mapped")
    plain = table.set_column(0, "kind", table["kind"].cast(pa.string()))
    decoded = topology.source(whale.sources.arrow(plain), id="decoded")
    for name, rows in (("mapped", mapped), ("decoded", decoded)):
        wanted = rows.filter(whale.col("kind").rlike("^v"), id=f"{name}-views")
        wanted.sink(whale.sinks.collect())
    mapped.filter(whale.col("kind") == "view", id="mapped-same").sink(whale.sinks.collect())
    lines = _pipelines(topology)
    assert lines["mapped-views"] == "compiled loop  where texts come as codes of a dictionary"
    assert lines["mapped-same"] == "compiled loop"
    assert lines["decoded-views"].startswith("interpreted    rlike, which has no compiled form,")


def test_explain_says_when_nothing_is_compiled() -> None:
    text = str(_topology().explain(settings={"runtime.pipelines": "interpreted"}))
    assert "expressions are not compiled into loops (runtime.pipelines: interpreted)" in text
    assert "compiled loop" not in text


def _merged_late(mode: str) -> tuple[list[Any], dict[str, tuple[int, int]]]:
    """Run views by the name of their number's last digit, merged late; return results, counts."""
    topology = whale.Topology("merged-late")
    table = pa.table({"digit": list(range(10)), "name": [f"n{n % 3}" for n in range(10)]})
    rows = topology.source(whale.sources.arrow(_table()), id="rows", event_time="at")
    views = rows.filter(whale.col("kind") == "view", id="views").select(
        "at", "n", (whale.col("n") % 10).cast("bigint").alias("digit"), id="digits"
    )
    named = views.join_table(table, on="digit", id="names")
    by_name = named.group_by(whale.window("at", "100 milliseconds", "50 milliseconds"), "name")
    total = functions.sum("n").alias("total")
    by_name.agg(functions.count().alias("rows"), total, id="totals", aggregation="late_merge").sink(
        whale.sinks.collect(), id="out"
    )
    if mode == "compiled":
        text = str(topology.explain())
        assert "views → digits → names → totals.partial" in text
    settings = {"runtime.pipelines": mode, "runtime.source_batch_rows": 64}
    job = whale.run(topology, settings=settings)
    found = job.results("out").to_arrow().to_pylist()
    key = ("window_start", "name")
    return sorted(found, key=lambda row: tuple(str(row[one]) for one in key)), {
        one.operator_id: (one.rows_in, one.rows_out) for one in job.metrics().operators
    }


def test_a_loop_that_ends_in_a_partial_aggregate_gives_the_same_rows_and_counts() -> None:
    interpreted, compiled = _merged_late("interpreted"), _merged_late("compiled")
    assert compiled == interpreted
    results, counts = compiled
    views = [n for n in range(ROWS) if n % 3 == 0 and n % 11]
    assert sum(row["rows"] for row in results) == 2 * len(views)  # each in two windows
    assert sum(row["total"] for row in results) == 2 * sum(views)
    assert counts["views"] == (ROWS, 334)
    assert counts["totals.partial"][0] == len(views)


def test_while_the_loop_of_all_operators_is_compiled_no_other_is_begun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun: list[str] = []
    job_has_ended = Event()
    compile_text = generated.compile_text

    def compiling(text: str, *arguments: Any, **options: Any) -> Any:
        begun.append(text)
        assert job_has_ended.wait(60)
        return compile_text(text, *arguments, **options)

    monkeypatch.setattr(generated, "compile_text", compiling)
    monkeypatch.setattr(generated, "is_kept", lambda text: False)
    monkeypatch.setattr(chain_loops, "COMPILE_AFTER_ROWS", 0)
    before = set(enumerate_threads())
    topology = whale.Topology("one-loop")
    rows = topology.source(whale.sources.arrow(_table()), id="rows", event_time="at")
    views = rows.filter(whale.col("kind") == "view", id="views").select("at", "n", id="numbers")
    windows = views.filter(whale.col("n") > 2).group_by(whale.window("at", "100 milliseconds"))
    totals = windows.agg(functions.sum("n").alias("total"), aggregation="late_merge")
    totals.sink(whale.sinks.collect(), id="totals")
    try:
        whale.run(topology, settings={"runtime.source_batch_rows": 64})
        (loop,) = begun
        assert "index[home] = group" in loop  # it adds groups: it ends in the aggregate
    finally:
        job_has_ended.set()
        for thread in set(enumerate_threads()) - before:
            thread.join()
