"""State read from checkpoints, against what was put into it; what changed; the command `state`."""

from __future__ import annotations

import datetime
import json
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import whale_ray as whale
from whale_ray import functions, state
from whale_ray.api.checkpoints import find_manifest
from whale_ray.api.state_listing import diff_of, epochs_in, operators_of
from whale_ray.api.state_reading import read_epoch
from whale_ray.cli.main import main
from whale_ray.control.operator_records import operator_records
from whale_ray.errors import DamagedCheckpointError, InputError, UsageError
from whale_ray.operators.keyed.dumped_state import declared_values
from whale_ray.operators.sealing import chunks_of as kept_chunks
from whale_ray.operators.snapshot_files import chunk_to_bytes
from whale_ray.operators.snapshots import StateChunk
from whale_ray.state.epochs.checkpoint_store import CheckpointStore
from whale_ray.state.epochs.manifest import ChunkFile, Lineage, Manifest, OperatorPart
from whale_ray.state.epochs.store_names import chunk_name
from whale_ray.testing import instance_context
from whale_ray.transport.wire.batch import Batch

DAY = datetime.date(2024, 2, 29)
NOON = datetime.datetime(2024, 2, 29, 12, tzinfo=datetime.UTC)


class Everything(whale.KeyedProcess):
    """Keeps one of each kind."""

    n = state.count()
    spent = state.sum("double", ttl="1 day")
    least = state.min("int32")
    last = state.value("timestamp[us, tz=UTC]", ttl=5)
    name = state.value("string")
    flag = state.value("bool")
    items = state.list("float")
    seen = state.map("int16", "date32")
    days = state.map("date32", "double", ttl="2 hours")
    words = state.list("string")
    named = state.map("string", "binary")
    quiet = state.timer("processing")

    def on_row(self, row: Any, out: whale.Output) -> None:
        self.n.add(1)
        self.spent.add(row.v)
        if row.v >= 0:
            self.least.add(int(row.v))
            self.last.set(NOON)
            self.name.set(f"näme {row.v:g}")
            self.flag.set(row.v > 1)
            self.seen[int(row.v)] = DAY
            self.days[DAY] = row.v
            self.named[f"näme {row.v:g}"] = str(row.v).encode()
            self.quiet.set(NOON)
        self.items.append(row.v)
        self.words.append(f"{row.v:g}")

    def on_timer(self, timer: Any, out: whale.Output) -> None:
        """Fire: does nothing."""


class _Out:
    time_ns: int | None = None


def expected(key: str, values: list[float]) -> dict[str, Any]:
    """Return the row of a key."""
    kept = [v for v in values if v >= 0]
    return {
        "k": key,
        "n": len(values),
        "spent": sum(values),
        "least": min((int(v) for v in kept), default=None),
        "last": NOON if kept else None,
        "name": f"näme {kept[-1]:g}" if kept else None,
        "flag": kept[-1] > 1 if kept else None,
        "items": values,
        "seen": sorted((n, DAY) for n in {int(v) for v in kept}),
        "days": [(DAY, kept[-1])] if kept else [],
        "words": [f"{v:g}" for v in values],
        "named": [(f"näme {v:g}", str(v).encode()) for v in dict.fromkeys(kept)],
        "quiet": NOON.replace(tzinfo=None) if kept else None,
    }


def chunks_of(rows: list[dict[str, Any]], instances: int = 1) -> list[list[StateChunk]]:
    """Return what instances of the process keep after rows, each with the keys that are its own."""
    found = []
    for instance in range(instances):
        mine = [row for row in rows if ord(row["k"]) % instances == instance]
        context = replace(instance_context(operator_id="op"), keys=(("k",),))
        process: Any = Everything()
        process.open(context)
        for epoch, some in enumerate((mine[: len(mine) // 2], mine[len(mine) // 2 :])):
            if some:
                process.on_batch(Batch.from_rows(some), _Out())
                process.deadline_ns()
            chunks = list(kept_chunks(process, context, epoch))
        found.append(chunks)
    return found


def logical() -> Any:
    topology = whale.Topology("reading")
    rows = topology.source(whale.sources.arrow(pa.table({"k": ["a"], "v": [1.0]})), id="rows")
    rows.key_by("k").process(Everything, id="op").sink(whale.sinks.collect(), id="out")
    rows.group_by("k").agg(functions.sum("v").alias("s"), id="sums").sink(
        whale.sinks.collect(), id="o2"
    )
    return topology.logical_plan()


@pytest.fixture
def store(tmp_path):
    kept = CheckpointStore.at(str(tmp_path / "store"))
    claim = kept.take_claim("job-1", "reading")
    yield kept
    claim.close()


RECORDS = {
    "op": {
        "kind": "process",
        "level": "declared",
        "key": [["k"]],
        "state": [one.describe() for one in Everything.declared.values()],
    },
    "book": {"kind": "process", "level": "rows", "key": [["k"]], "state": []},
    "own": {"kind": "process", "level": "opaque", "key": [["k"]], "state": []},
    "rows": {"kind": "source", "level": "", "key": [], "state": []},
    "kilo": {"kind": "transform", "level": "", "key": [], "state": []},
    "named": {"kind": "table join", "level": "", "key": [], "state": []},
    "out": {"kind": "sink", "level": "", "key": [], "state": []},
}


def write(store: CheckpointStore, epoch: int, objects: list[list[StateChunk]], **more: Any) -> str:
    """Write an epoch with the state of "op", of "book", and the position of "rows"."""
    parts = []
    for instance, chunks in enumerate(objects):
        files = [_file(store, epoch, f"op-{instance}-{n}", c) for n, c in enumerate(chunks)]
        parts.append(OperatorPart("op", (instance,), len(objects), 0, tuple(files)))
    book = Batch.from_rows([{"k": "a", "#price": epoch}, {"k": "a", "#price": 7}])
    waiting = StateChunk(Batch.from_rows([{"k": "z", "v": 1.0}]), waits=(0, 0))
    files = [_file(store, epoch, f"book-{n}", c) for n, c in enumerate([StateChunk(book), waiting])]
    parts.append(OperatorPart("book", (0,), 1, 0, tuple(files)))
    values = ChunkFile("chunks/own", 5, epoch)
    parts.append(OperatorPart("own", (0,), 1, 0, tuple(files[1:]), values=values))
    table = _file(store, epoch, "named", StateChunk(Batch.from_rows([{"id": 1}])))
    parts.append(OperatorPart("named", (0,), 1, 0, (table,)))
    parts.append(OperatorPart("rows", (0,), 1, 0, position={"row": epoch}))
    staged = ({"instance": 1, "rows": 7, "path": "p"},)
    parts.append(OperatorPart("out", (1,), 2, 0, staged=staged))
    lineage = Lineage("job-1", (("job-0", 4),))
    made_ms = 1_700_000_000_000
    manifest = Manifest(
        epoch, epoch - 1, lineage, "reading", made_ms, 1024, tuple(parts), RECORDS, **more
    )
    return store.write_manifest(manifest)


def _file(store: CheckpointStore, epoch: int, label: str, chunk: StateChunk) -> ChunkFile:
    return store.write_chunk(chunk_name("job-1", epoch, label), chunk_to_bytes(chunk))


ROWS = [{"k": k, "v": v} for k, v in [("a", 1.0), ("b", -2.0), ("a", 3.0), ("c", 0.5), ("a", -1.0)]]


def by_key(table: pa.Table) -> dict[str, dict[str, Any]]:
    rows = {row["k"]: row for row in table.to_pylist()}
    for row in rows.values():
        row["seen"] = sorted(row["seen"])
    return rows


# --- reading --------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(-3, 9)), max_size=30),
    st.integers(1, 3),
)
def test_declared_state_is_a_row_per_key(tmp_path_factory, drawn, instances):
    rows = [{"k": key, "v": float(v)} for key, v in drawn]
    kept = CheckpointStore.at(str(tmp_path_factory.mktemp("store")))
    claim = kept.take_claim("job-1", "reading")
    write(kept, 1, chunks_of(rows, instances))
    claim.close()
    found = whale.read_state(kept.url, "op")
    values: dict[str, list[float]] = {}
    for row in rows:
        values.setdefault(row["k"], []).append(row["v"])
    # A key whose values are all the initial ones is not kept.
    assert by_key(found) == {key: expected(key, one) for key, one in values.items()}


def test_types_are_the_declared_ones(store):
    write(store, 1, chunks_of(ROWS))
    found = whale.read_state(store.url, "op").schema
    assert {name: str(found.field(name).type) for name in found.names} == {
        "k": "string",
        "n": "int64",
        "spent": "double",
        "least": "int32",
        "last": "timestamp[us, tz=UTC]",
        "name": "string",
        "flag": "bool",
        "items": "list<item: float>",
        "seen": "map<int16, date32[day]>",
        "days": "map<date32[day], double>",
        "words": "list<item: string>",
        "named": "map<string, binary>",
        "quiet": "timestamp[ns]",
    }


def test_types_are_there_without_a_key(store):
    """As at a checkpoint before the first row, or behind the end of a job."""
    write(store, 1, [])
    found = whale.read_state(store.url, "op")
    assert found.num_rows == 0 and found.column_names == ["k", *Everything.declared]
    write(store, 2, chunks_of(ROWS))
    full = whale.read_state(store.url, "op").schema
    assert [found.schema.field(name) for name in Everything.declared] == [
        full.field(name) for name in Everything.declared
    ]
    assert whale.read_state(store.url, "op", "n", 1).column_names == ["k", "value"]


def test_one_value_of_an_epoch(store):
    write(store, 1, chunks_of(ROWS[:2]))
    name = write(store, 2, chunks_of(ROWS))
    assert whale.read_state(store.url, "op", "n", 1).to_pydict() == {
        "k": ["a", "b"],
        "value": [1, 1],
    }
    for epoch in ("latest", 2, "2", name):
        found = whale.read_state(store.url, operator="op", name="n", epoch=epoch).to_pydict()
        assert dict(zip(found["k"], found["value"], strict=True)) == {"a": 3, "b": 1, "c": 1}
    of_manifest = whale.read_state(f"{store.url}/{store.manifests()[0]}", "op", "n")
    assert of_manifest.num_rows == 2


def test_rows_that_are_kept_are_shown_without_those_that_wait(store):
    write(store, 3, chunks_of(ROWS))
    found = whale.read_state(store.url, "book")
    assert found.to_pydict() == {"k": ["a", "a"], "price": [3, 7]}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("os",),
            r"checkpoint 1 has no operator 'os'.*; it has 'book', 'kilo', 'named', 'op', ",
        ),
        (("op", "m"), "operator 'op' keeps no 'm'; it keeps 'n', 'spent', 'least', 'last'"),
        (("op", "k"), "operator 'op' keeps no 'k'"),
        (("op", "n", 7), "has no checkpoint 7; there are epochs 1"),
        (("own",), "operator 'own' keeps its object whole.*define dump and load"),
    ],
)
def test_what_is_not_there_is_named(store, arguments, said):
    write(store, 1, chunks_of(ROWS))
    with pytest.raises(InputError, match=said):
        whale.read_state(store.url, *arguments)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"url": None}, r"read_state\(url=…\) got None: pass a path or a URL"),
        ({"operator": None}, r"\(operator=…\) got None: pass the id of an operator"),
        ({"operator": ["op"]}, r"\(operator=…\) got a list"),
        ({"name": 5}, r"\(name=…\) got 5: pass the name of a declared value"),
        ({"epoch": 1.5}, r"\(epoch=…\) got 1.5: pass a number"),
    ],
)
def test_arguments_of_other_types_are_named(store, arguments, said):
    with pytest.raises(UsageError, match=said):
        whale.read_state(**{"url": store.url, "operator": "op", **arguments})


def test_an_empty_folder_has_none(tmp_path):
    with pytest.raises(InputError, match=rf"no checkpoints in '{tmp_path}'"):
        whale.read_state(tmp_path, "op")


def test_descriptions_are_read_as_they_are_written():
    described = RECORDS["op"]["state"]
    assert [one.name for one in declared_values(described)] == list(Everything.declared)
    assert declared_values(["sum(v) AS s"]) is None
    assert declared_values([]) is None


def test_records_of_operators_are_those_that_jobs_write():
    records = operator_records(logical())
    assert {what: records["op"][what] for what in RECORDS["op"]} == RECORDS["op"]
    assert declared_values(records["sums"]["state"]) is None


def test_a_folder_below_one_that_is_called_manifests_is_found(tmp_path):
    kept = CheckpointStore.at(str(tmp_path / "manifests" / "trips"))
    claim = kept.take_claim("job-1", "reading")
    name = write(kept, 1, chunks_of(ROWS))
    claim.close()
    for path in (kept.url, f"{kept.url}/{name}"):
        assert whale.read_state(path, "op").num_rows == len({"a", "b", "c"})
        found = find_manifest(path, "")
        assert found is not None
        assert (found[0].url, found[0].manifest) == (kept.url, name)


# --- listing and differences ----------------------------------------------------------------------


def test_epochs_are_listed_with_what_they_add(store, tmp_path):
    first = write(store, 1, chunks_of(ROWS[:2]), savepoint=True)
    write(store, 2, chunks_of(ROWS), stopped=True)
    (tmp_path / "store" / first).write_bytes(b"{")
    damaged, entry = epochs_in(store)
    assert (damaged.epoch, damaged.job, damaged.nbytes) == (1, "job-1", 0)
    assert "is damaged" in damaged.damage
    assert (entry.epoch, entry.ended, entry.savepoint) == (2, "stopped", False)
    assert entry.nbytes == entry.new_nbytes > 5
    assert entry.restored == (("job-0", 4),)
    rows = {
        one.operator: one.rows for one in operators_of(store, store.read_manifest(entry.manifest))
    }
    for operator in ("op", "book", "named"):
        assert rows[operator] == whale.read_state(store.url, operator).num_rows


@pytest.mark.parametrize(
    ("marks", "told"),
    [
        ({}, ""),
        ({"stopped": True}, "stopped"),
        ({"publisher": "job-1"}, "publishing"),
        ({"publisher": "job-1", "finished": True}, "finished"),
        ({"publisher": "job-1", "finished": True, "drained": True}, "drained"),
    ],
)
def test_how_a_job_ended_at_a_checkpoint(store, marks, told):
    write(store, 1, chunks_of(ROWS), **marks)
    assert [one.ended for one in epochs_in(store)] == [told]


def test_differences_are_counted_by_key(store):
    write(store, 1, chunks_of(ROWS[:3]))
    changed = [("a", 1.0), ("a", 3.0), ("b", 9.0), ("d", 1.0)]
    rows = [{"k": key, "v": v} for key, v in changed]
    write(store, 2, chunks_of(rows, instances=2))
    one, two = (store.read_manifest(name) for name in store.manifests())
    found = {diff.operator: diff for diff in diff_of(store, one, two)}
    assert (found["op"].added, found["op"].removed) == (1, 0)
    assert (found["op"].changed, found["op"].same) == (1, 1)
    assert (found["book"].changed, found["book"].same) == (1, 0)
    assert found["rows"].whole == found["own"].whole == "changed"
    same = diff_of(store, one, one)
    assert not any(diff.added + diff.removed + diff.changed for diff in same)
    assert {diff.whole for diff in same} == {"", "same"}


def test_what_a_running_job_removes_while_it_is_read_is_no_damage(store, tmp_path):
    names = {epoch: write(store, epoch, chunks_of(ROWS)) for epoch in (1, 2)}
    read: list[int] = []

    def lacking(name: str, manifest: Any) -> str:
        read.append(manifest.epoch)
        if manifest.epoch == 2 and 3 not in names:
            names[3] = write(store, 3, chunks_of(ROWS))
        if name != names.get(3):
            (tmp_path / "store" / name).unlink()
            raise DamagedCheckpointError("it lacks a chunk")
        return name

    assert read_epoch(store, "latest", lacking) == names[3]
    with pytest.raises(InputError, match="has no checkpoint '?1'?; there are epochs 3"):
        read_epoch(store, 1, lacking)
    assert read == [2, 3, 1]


# --- the command ----------------------------------------------------------------------------------


def test_the_command_lists_shows_and_compares(store, capsys):
    name = write(store, 1, chunks_of(ROWS[:3]), savepoint=True)
    write(store, 2, chunks_of(ROWS))
    assert main(["state", f"{store.url}/{name}"]) == 0
    assert f"{store.url}/{name}\n" in capsys.readouterr().out
    assert main(["state", store.url]) == 0
    said = capsys.readouterr().out
    assert "savepoint" in said and "2023-11-14 22:13:20" in said
    assert "which went on from job-0 at 4" in said
    assert main(["state", store.url, "show", "op", "--name", "n", "--rows", "1"]) == 0
    said = capsys.readouterr().out
    assert "op at checkpoint 2: 3 rows, by k" in said and "… and 2 more" in said
    for words, told in {
        "rows": 'rows at checkpoint 2: 1 position\n  instances 0: {"row": 2}\n',
        "out": "out at checkpoint 2: 1 staged part\n  instance  rows  path\n  1         7     p\n",
        "kilo": "kilo at checkpoint 2: it keeps no state\n",
        "named": "named at checkpoint 2: 1 row\n  id\n  1\n",
    }.items():
        assert main(["state", store.url, "show", words]) == 0
        assert capsys.readouterr().out == told
    assert main(["state", store.url, "diff", "1", "2"]) == 0
    assert "from checkpoint 1 to 2" in capsys.readouterr().out


def test_the_command_speaks_json(store, capsys):
    write(store, 1, chunks_of(ROWS))
    assert main(["state", store.url, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["epoch"] for one in found["checkpoints"]] == [1]
    rows = {one["operator"]: one["rows"] for one in found["operators"]}
    assert rows["book"] == 2 and rows["own"] is None and rows["op"] == len({"a", "b", "c"})
    assert main(["state", store.url, "show", "book", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == [
        {"k": "a", "price": 1},
        {"k": "a", "price": 7},
    ]
    assert main(["state", store.url, "diff", "1", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["to"] == 1


def test_the_command_says_what_is_wrong_in_one_line(store, capsys, tmp_path):
    for words in ([], ["--json"], ["show", "op"]):
        assert main(["state", str(tmp_path / "none"), *words]) == 2
        out, err = capsys.readouterr()
        (line,) = err.splitlines()
        assert not out and f"there are no checkpoints in '{tmp_path}/none'" in line
    write(store, 1, chunks_of(ROWS))
    for words in (["show"], ["diff", "1"], ["show", "nobody"], ["diff", "1", "9"], ["--epoch", ""]):
        assert main(["state", store.url, *words]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("whale-ray: ")
    for mistake, told in (
        (["state"], "the following arguments are required: PATH; see"),
        (["state", store.url, "show", "op", "--rows", "-3"], "'-3' is not a number of rows"),
        (["state", f"{store.url}/{store.manifests()[0]}x"], "has no checkpoint 'manifests/"),
    ):
        assert main(mistake) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert told in line


def test_a_chunk_that_is_gone_is_named(store, tmp_path, capsys):
    write(store, 1, chunks_of(ROWS))
    for path in (tmp_path / "store" / "chunks").rglob("op-*"):
        path.unlink()
    with pytest.raises(DamagedCheckpointError, match="lacks chunks/job-1/.*restore from another"):
        whale.read_state(store.url, "op")
    assert main(["state", store.url]) == 2
    said, error = capsys.readouterr()
    assert "2023-11-14 22:13:20" in said and "lacks chunks/job-1/" in said
    assert "1 of 1 checkpoint in " in error and "is damaged, as listed: bring its files" in error
