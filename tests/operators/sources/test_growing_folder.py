"""The growing folder against a plain model: whatever appears when, each file is read once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import whale_ray as whale
from tests.operators.sources.growing import POLL_NS, TYPES, Folder
from whale_ray.configs.errors import BadRowError, InputError
from whale_ray.operators.sources.files_read import FilesRead, LastRead, owner_of
from whale_ray.testing import check_source, instance_context


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    made = Folder(tmp_path)
    yield made
    made.close()


@given(st.data())
def test_each_file_is_read_once_whatever_appears_when(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(["csv", "json_lines", "parquet"]))
    order = data.draw(st.sampled_from(["name", "time"]))
    with TemporaryDirectory() as path:
        folder = Folder(Path(path), data.draw(st.integers(1, 4)), kind, order=order)
        names: set[str] = set()
        for _ in range(data.draw(st.integers(1, 8), "steps")):
            match data.draw(st.sampled_from(["add", "read", "wait", "restore"])):
                case "add":
                    for name in data.draw(st.sets(st.text("abcxyz", min_size=1, max_size=3))):
                        if name not in names:
                            time_s = data.draw(st.integers(1, 9))
                            folder.add(name, data.draw(st.integers(0, 30)), time_s)
                            names.add(name)
                case "read":
                    folder.read(
                        data.draw(st.integers(0, folder.parallelism - 1)),
                        data.draw(st.integers(1, 20)),
                    )
                case "wait":
                    folder.clock.advance(POLL_NS)
                case "restore":
                    folder.restore(data.draw(st.integers(1, 7)))
        folder.read_all()
        assert Counter(folder.seen) == folder.expected
        folder.close()
        assert not folder.left_out


@pytest.mark.long
@given(st.data())
def test_the_memory_of_what_was_read_is_bounded(data: st.DataObject) -> None:
    """Names that ascend: three remembered files are enough, through any chain of instances."""
    with TemporaryDirectory() as path:
        folder = Folder(Path(path), data.draw(st.integers(1, 4)), remember_files=3)
        number = 0
        for _ in range(data.draw(st.integers(1, 8), "steps")):
            for _ in range(data.draw(st.integers(0, 9))):
                folder.add(f"{number:04}", data.draw(st.integers(1, 5)))
                number += 1
            for instance in range(folder.parallelism):
                folder.clock.advance(data.draw(st.sampled_from([0, POLL_NS])))
                for _ in range(data.draw(st.integers(0, 12))):
                    folder.read(instance, data.draw(st.integers(1, 9)))
            if data.draw(st.booleans(), "restore"):
                folder.restore(data.draw(st.integers(1, 7)))
        folder.read_all()
        assert Counter(folder.seen) == folder.expected
        for one in folder.positions():
            assert len(one["files"]["read"]) <= 3
            assert one["files"]["owed"] == []
            assert one["begun"] == []
        folder.close()


def test_order_by_name_and_by_time(tmp_path: Path) -> None:
    for order, expected in (("name", "abc"), ("time", "cab")):
        (tmp_path / order).mkdir()
        folder = Folder(tmp_path / order, order=order)
        for name, time_s in (("a", 2), ("b", 3), ("c", 1)):
            folder.add(name, 1, time_s)
        assert "".join(name for name, _ in folder.read_all()) == expected
        folder.add("0", 1, 9)
        assert folder.read_all() == [("0", 0)], "an earlier name that appears late is read late"
        folder.close()


def test_what_appears_too_late_is_refused_or_counted(tmp_path: Path) -> None:
    for policy in ("fail", "drop"):
        (tmp_path / policy).mkdir()
        folder = Folder(tmp_path / policy, remember_files=2, on_bad_rows=policy)
        for name in "bcde":
            folder.add(name, 1)
        assert len(folder.read_all()) == 4
        folder.add("bb", 1)
        if policy == "drop":
            assert folder.read_all() == []
            assert folder.readers[0].rejected == {"file that appeared too late": 1}
            folder.add("cc", 1)
            assert folder.read_all() == [("cc", 0)], "late, but behind the floor"
            assert folder.readers[0].rejected == {"file that appeared too late": 1}
        else:
            with pytest.raises(
                InputError, match=r"bb\.csv: it has appeared behind files.*raise rem"
            ):
                folder.read_all()
        folder.close()


def test_hidden_and_other_names_and_folders_are_not_read(folder: Folder) -> None:
    for name in (".a.csv", "_b.csv", "c.tmp"):
        (folder.path / name).write_text("no CSV")
    (folder.path / "d.csv").mkdir()
    assert folder.read_all() == []
    folder.add("e", 2)
    assert folder.read_all() == [("e", 0), ("e", 1)]


def test_empty_files_are_looked_at_again(folder: Folder) -> None:
    folder.source = whale.sources.growing_folder(folder.path, "csv", TYPES, remember_files=1)
    folder.restore(1)
    path = folder.path / "a.csv"
    path.touch()
    (folder.path / "0.csv").touch()
    folder.add("b", 1)
    folder.add("c", 1)
    assert folder.read_all() == [("b", 0), ("c", 0)]
    folder.restore(2)
    path.write_text("n,file\n1,a\n")
    assert folder.read_all() == [("a", 1)]
    (folder.path / "0.csv").unlink()
    assert folder.read_all() == []


@pytest.mark.parametrize("instances", [1, 3])
def test_an_empty_file_may_go_away_while_no_job_runs(folder: Folder, instances: int) -> None:
    path = folder.path / "0.csv"
    path.touch()
    folder.add("a", 1)
    assert folder.read_all() == [("a", 0)]
    positions = folder.positions()
    folder.close()
    path.unlink()
    folder.parallelism = instances
    folder.open(positions)
    assert folder.read_all() == []


def test_an_empty_file_that_went_away_excuses_no_other_of_its_name(folder: Folder) -> None:
    path = folder.path / "a.csv"
    path.touch()
    folder.read_all()
    path.unlink()
    folder.read_all()
    folder.add("0", 5)
    folder.add("a", 5)
    folder.clock.advance(POLL_NS)
    assert folder.read(0, 2) == [("0", 0), ("0", 1)]
    path.unlink()
    with pytest.raises(InputError, match=r"a\.csv: it has vanished before it was read"):
        folder.read_all()


def test_a_file_that_vanishes(tmp_path: Path) -> None:
    for policy in ("fail", "drop"):
        (tmp_path / policy).mkdir()
        folder = Folder(tmp_path / policy, on_bad_rows=policy)
        folder.add("a", 5)
        gone = folder.add("b", 5)
        folder.read(0, 2)
        gone.unlink()
        if policy == "fail":
            with pytest.raises(InputError, match=r"b\.csv: it has vanished before it was read"):
                folder.read_all()
        else:
            assert len(folder.read_all()) == 3
            assert folder.readers[0].rejected == {"file that vanished before it was read": 1}
        folder.close()


def test_a_file_that_vanishes_while_nobody_reads(tmp_path: Path) -> None:
    for policy in ("fail", "drop"):
        (tmp_path / policy).mkdir()
        folder = Folder(tmp_path / policy, on_bad_rows=policy)
        gone = folder.add("a", 5)
        folder.read(0, 2)
        gone.unlink()
        folder.restore(3)
        owner = owner_of("a.csv", 3)
        folder.clock.advance(POLL_NS)
        if policy == "fail":
            with pytest.raises(InputError, match=r"a\.csv: a part of it was read before the check"):
                folder.read(owner, 2)
        else:
            assert folder.read(owner, 2) == []
            assert folder.readers[owner].rejected == {"file that vanished before it was read": 1}
        folder.close()


def test_a_file_that_was_begun_and_has_changed(folder: Folder) -> None:
    folder.add("a", 5)
    folder.read(0, 2)
    folder.restore(1)
    folder.add("a", 9)
    with pytest.raises(
        InputError, match=r"a\.csv: a part of it was read before the checkpoint, and"
    ):
        folder.read_all()


def test_a_file_that_changes_while_it_is_read(tmp_path: Path) -> None:
    for policy in ("fail", "drop"):
        (tmp_path / policy).mkdir()
        folder = Folder(tmp_path / policy, on_bad_rows=policy)
        path = folder.add("a", 5)
        folder.read(0, 2)
        with path.open("a") as file:
            file.write("77,more\n")
        if policy == "fail":
            with pytest.raises(
                InputError, match=r"a\.csv: it has changed while it was read; write"
            ):
                folder.read_all()
        else:
            folder.read_all()
            assert folder.readers[0].rejected == {"file that changed while it was read": 1}
        folder.close()


def test_a_file_that_grows_after_it_was_read(tmp_path: Path) -> None:
    """Its writer had not written all of it: the rest would be missing, and nobody would know."""
    for policy in ("fail", "drop"):
        (tmp_path / policy).mkdir()
        folder = Folder(tmp_path / policy, on_bad_rows=policy)
        path, moved = folder.add("a", 2), folder.add("b", 2)
        folder.read_all()
        moved.unlink()
        with path.open("a") as file:
            file.write("77,more\n")
        folder.clock.advance(POLL_NS)
        if policy == "fail":
            with pytest.raises(InputError, match=r"a\.csv: it has grown after it was read, and"):
                folder.read_all()
        else:
            folder.read_all()
            folder.clock.advance(POLL_NS)
            folder.read_all()
            assert folder.readers[0].rejected == {"file that grew after it was read": 1}
        folder.close()


@pytest.mark.parametrize("order", ["name", "time"])
@pytest.mark.parametrize("parallelism", [2, 3])
def test_a_file_that_changes_while_no_job_runs(
    tmp_path: Path, order: str, parallelism: int
) -> None:
    folder = Folder(tmp_path, 2, order=order)
    paths = [folder.add(name, 2, time_s=10 + at) for at, name in enumerate("abcd")]
    folder.read_all()
    positions = folder.positions()
    folder.close()
    folder.parallelism = parallelism
    paths[3].unlink()
    folder.open(positions)
    assert folder.read_all() == []
    folder.close()
    paths[2].write_text("n,file\n7,c\n")
    folder.open(positions)
    with pytest.raises(InputError, match=r"c\.csv: it has changed after it was read, and is not"):
        folder.read_all()
    folder.close()
    paths[0].write_text(f"{paths[0].read_text()}7,a\n")
    folder.source = folder.source.with_bad_rows("drop")
    folder.open(positions)
    assert folder.read_all() == []
    counts = [Counter(reader.rejected) for reader in folder.readers]
    assert sum(counts, Counter()) == {
        "file that grew after it was read": 1,
        "file that changed after it was read": 1,
    }
    folder.close()


@pytest.mark.parametrize("text", ["n,file\n8,a\n", "n,file\n0,a\n1,a\n8,a\n"])
def test_a_file_that_changes_is_not_read_again_though_its_name_is_forgotten(
    tmp_path: Path, text: str
) -> None:
    folder = Folder(tmp_path, order="time", remember_files=2, on_bad_rows="drop")
    paths = [folder.add(name, 2, time_s=10 + at) for at, name in enumerate("abcd")]
    folder.read_all()
    paths[0].write_text(text)
    assert folder.read_all() == []
    assert sum(folder.readers[0].rejected.values()) == 1
    folder.restore(1)
    assert folder.read_all() == []
    folder.add("e", 2)
    assert folder.read_all() == [("e", 0), ("e", 1)]
    folder.close()


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for policy in ("fail", "drop"):
        (tmp_path / policy).mkdir()
        folder = Folder(tmp_path / policy, kind="parquet", on_bad_rows=policy)
        folder.add("a", 5)
        (tmp_path / policy / "b.parquet").write_bytes(b"PAR1 and nothing else")
        table = pa.table({"n": ["other"], "file": ["c"]})
        pq.write_table(table, tmp_path / policy / "c.parquet")
        folder.add("d", 1)
        if policy == "fail":
            with pytest.raises(InputError, match=r"b\.parquet: not a complete Parquet file"):
                folder.read_all()
            folder.close()
            (tmp_path / policy / "b.parquet").unlink()
            folder.open()
            with pytest.raises(InputError, match=r"c\.parquet: it has the columns n: string"):
                folder.read_all()
        else:
            assert folder.read_all() == [*(("a", n) for n in range(5)), ("d", 0)]
            assert folder.readers[0].rejected == {"file that cannot be read": 2}
        folder.close()


def test_bad_rows_are_counted_once(tmp_path: Path) -> None:
    folder = Folder(tmp_path, on_bad_rows="drop")
    (tmp_path / "a.csv").write_text("n,file\n" + "1,a\nx,a\n2,a\n" * 3)
    folder.read(0, 2)
    for parallelism in (3, 2):
        folder.restore(parallelism)
    folder.read_all()
    folder.close()
    assert folder.left_out == {"malformed line": 3}
    assert len(folder.seen) == 6
    folder = Folder(tmp_path)
    with pytest.raises(BadRowError, match="line 3"):
        folder.read_all()
    folder.close()


def test_a_folder_that_is_gone(tmp_path: Path) -> None:
    source = whale.sources.growing_folder(tmp_path / "none")
    with pytest.raises(InputError, match=r"no folder .*none'; create it"):
        source.check()
    reader = source.open(instance_context())
    with pytest.raises(InputError, match="cannot be listed"):
        reader.read(1)


def test_what_is_refused_at_once(tmp_path: Path) -> None:
    make: Any = whale.sources.growing_folder
    for arguments, message in (
        ({"format": "orc"}, "format='orc' is unknown"),
        ({"order": "size"}, "order='size' is unknown"),
        ({"poll_ms": 0}, "poll_ms=0 is out of range"),
        ({"remember_files": 0}, "must be at least 1"),
        ({"format": "csv"}, "pass schema="),
        ({"schema": TYPES}, "leave schema= out"),
        ({"delimiter": ";"}, "leave delimiter= out"),
        ({"format": "csv", "schema": TYPES, "colour": 1}, "csv has no option colour"),
    ):
        with pytest.raises(InputError, match=message):
            make(tmp_path, **arguments)
    with pytest.raises(InputError, match="pass the path of one folder"):
        make([tmp_path])
    by_name = Folder(tmp_path)
    with pytest.raises(InputError, match="files were read by name before"):
        make(tmp_path, order="time").open_at(instance_context(), by_name.positions())
    by_name.close()


def test_the_reader_waits_between_looks(folder: Folder) -> None:
    assert folder.read(0, 1) == []
    reader = folder.readers[0]
    assert reader.next_ready_ns() == folder.clock.monotonic_ns() + POLL_NS
    folder.add("a", 1)
    assert folder.read(0, 1) == [], "it does not look before"
    folder.clock.advance(POLL_NS)
    assert folder.read(0, 1) == [("a", 0)]
    assert not reader.finished
    assert folder.source.describe() == f"csv files that appear in {folder.path}, by name"
    assert folder.source.schema() == whale.Schema.of(**TYPES)


def test_owners_are_the_same_everywhere() -> None:
    names = [f"part-{number}.csv" for number in range(3000)]
    shares = Counter(owner_of(name, 7) for name in names)
    assert max(shares.values()) < 1.2 * min(shares.values())
    assert owner_of("part-0.csv", 1000) == 961
    assert FilesRead(2).to_json() == {"floor": None, "read": [], "owed": []}


def test_it_keeps_the_promises_of_a_source(tmp_path: Path) -> None:
    folder = Folder(tmp_path, kind="parquet")
    for name in "abcdefgh":  # each of three instances has one of them
        folder.add(name, 100)
    folder.close()
    check_source(lambda: folder.source)


def test_fewer_instances_watch_the_files_that_each_of_those_before_has_read_last() -> None:
    names = [[f"{old}-{number}.csv" for number in range(100)] for old in range(2)]
    olds = [[[name, 1, 1] for name in read] for read in names]
    found = {name: (0, name) for name in (*names[0], *names[1])}
    watched = LastRead.divided(olds, (), 0, 1).to_compare(found, found)
    assert sorted(watched) == sorted([*names[0][50:], *names[1][50:]])
