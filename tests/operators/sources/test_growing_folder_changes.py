"""A growing folder whose files are moved away, touched, replaced, or links.

None is read twice, and none is left out without a word.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import whale_ray as whale
from tests.operators.sources.growing import POLL_NS, TYPES, Folder
from whale_ray.configs.errors import InputError
from whale_ray.operators.sources import files_read
from whale_ray.operators.sources.files_read import owner_of
from whale_ray.testing import instance_context

ORDERS = pytest.mark.parametrize("order", ["name", "time"])
FAR = "x" * 300
"""A name that no file can have: looking at it fails, as behind a folder that cannot be entered."""


def reasons(folder: Folder) -> Counter[str]:
    """Return what the readers have left out."""
    return sum((Counter(reader.rejected) for reader in folder.readers), Counter())


@ORDERS
def test_another_file_of_a_name_that_was_read_is_refused_or_counted(
    tmp_path: Path, order: str
) -> None:
    for policy in ("fail", "drop"):
        (tmp_path / policy).mkdir()
        folder = Folder(tmp_path / policy, order=order, on_bad_rows=policy)
        for time_s in (1000, 2000, 3000):
            path = folder.add("latest", 2, time_s)
            if time_s == 1000:
                assert len(folder.read_all()) == 2
            elif policy == "fail":
                with pytest.raises(InputError, match=r"latest\.csv: a file of this name was read"):
                    folder.read_all()
                break
            else:
                assert folder.read_all() == []
            path.unlink()
            folder.read_all()
            if policy == "drop":
                folder.restore(2)
                folder.read_all()
        folder.close()
        if policy == "drop":
            assert folder.left_out == {"file with the name of one that was read": 2}


@ORDERS
def test_a_name_is_known_as_long_as_it_is_remembered(tmp_path: Path, order: str) -> None:
    folder = Folder(tmp_path, order=order, on_bad_rows="drop")
    path = folder.add("zzz" if order == "name" else "a", 2, time_s=9000)
    for number in range(150):
        folder.add(f"n{number:03}", 1, time_s=1000 + number)
    folder.read_all()
    hidden = path.rename(tmp_path / ".moved")
    for number in range(150, 300):
        folder.add(f"n{number:03}", 1, time_s=1000 + number)
    folder.read_all()
    hidden.rename(path)
    assert folder.read_all() == []
    assert not reasons(folder), "it is the one that was read"
    path.unlink()
    folder.read_all()
    folder.add(path.stem, 2, time_s=9001)
    assert folder.read_all() == []
    assert reasons(folder) == {"file with the name of one that was read": 1}
    folder.close()


@ORDERS
def test_another_file_of_a_name_appears_while_no_job_runs(tmp_path: Path, order: str) -> None:
    folder = Folder(tmp_path, 2, order=order)
    path = folder.add("latest", 2, time_s=1000)
    folder.read_all()
    path.unlink()
    folder.read_all()
    folder.add("latest", 2, time_s=2000)
    folder.restore(3)
    with pytest.raises(InputError, match=r"latest\.csv: it has changed after it was read"):
        folder.read_all()
    folder.close()


@ORDERS
def test_another_file_of_the_name_of_one_that_could_not_be_read(tmp_path: Path, order: str) -> None:
    folder = Folder(tmp_path, kind="parquet", order=order, on_bad_rows="drop")
    path = tmp_path / "latest.parquet"
    path.write_bytes(b"PAR1 and nothing else")
    folder.read_all()
    path.write_bytes(b"PAR1 and something else")
    folder.read_all()
    assert reasons(folder) == {"file that cannot be read": 1}, "it is counted once"
    path.unlink()
    folder.read_all()
    folder.add("latest", 3)
    assert folder.read_all() == []
    assert reasons(folder)["file with the name of one that was read"] == 1
    folder.close()


@given(st.data())
def test_whatever_happens_to_files_each_is_read_once_or_counted(data: st.DataObject) -> None:
    order = data.draw(st.sampled_from(["name", "time"]))
    with TemporaryDirectory() as path, pytest.MonkeyPatch.context() as patch:
        patch.setattr(files_read, "_WATCHED_FILES", 2)
        folder = Folder(Path(path), data.draw(st.integers(1, 3)), order=order, on_bad_rows="drop")
        times_s = iter(data.draw(st.permutations(range(1000, 1040))))
        there: dict[str, bool] = {}
        told: set[str] = set()
        expected, left_out = Counter[tuple[str, int]](), 0
        for _ in range(data.draw(st.integers(1, 15), "steps")):
            name = data.draw(st.sampled_from("abcd"))
            match data.draw(st.sampled_from(["add", "add", "away", "touch", "restore"])):
                case "add" if name not in there:
                    folder.add(name, 2, next(times_s))
                    expected.update((name, number) for number in range(2))
                    there[name] = True
                case "add" if not there[name] or order == "time":  # by name, not all are watched
                    folder.add(name, data.draw(st.integers(0, 3)), next(times_s))
                    left_out += name not in told
                    there[name] = True
                    told.add(name)
                case "away" if there.get(name):
                    (folder.path / f"{name}.csv").unlink()
                    there[name] = False
                    told.discard(name)
                case "touch" if there.get(name) and order == "time":
                    os.utime(folder.path / f"{name}.csv", (at_s := next(times_s), at_s))
                    left_out += name not in told
                    told.add(name)
                case "restore":
                    folder.restore(data.draw(st.integers(1, 4)))
            folder.read_all()
        folder.close()
        assert Counter(folder.seen) == expected
        assert sum(folder.left_out.values()) == left_out


@pytest.mark.long
@pytest.mark.parametrize("remembered", [2, 1000])
def test_a_file_that_is_touched_while_it_is_remembered_is_read_once(
    tmp_path: Path, remembered: int
) -> None:
    folder = Folder(tmp_path, order="time", on_bad_rows="drop", remember_files=remembered)
    path = folder.add("0000", 1, time_s=1000)
    count = 0 if remembered == 2 else 150
    for number in range(1, 1 + count):
        folder.add(f"{number:04}", 1, time_s=1000 + number)
    folder.read_all()
    os.utime(path, (1200, 1200))
    folder.read_all()
    assert reasons(folder) == {"file that changed after it was read": 1}
    for number in range(1 + count, 6 + count + remembered):
        folder.add(f"{number:04}", 1, time_s=1300 + number)
        if number % 100 < 5:
            folder.read_all()
    folder.read_all()
    assert Counter(folder.seen) == folder.expected
    folder.close()


def test_a_file_that_is_touched_while_no_job_runs_is_read_once(tmp_path: Path) -> None:
    """One instance remembers it, and another has come further than the new time."""
    folder = Folder(tmp_path, 2, order="time", on_bad_rows="drop", remember_files=60)
    own = [name for name in map(str, range(500)) if not owner_of(f"{name}.csv", 2)]
    other = [name for name in map(str, range(500)) if owner_of(f"{name}.csv", 2)]
    path = folder.add(own[0], 1, time_s=1000)
    for number in range(1, 56):
        folder.add(own[number], 1, time_s=1000 + number)
    for number in range(110):
        folder.add(other[number], 1, time_s=2000 + number)
    folder.read_all()
    positions = folder.positions()
    folder.close()
    os.utime(path, (5000, 5000))
    folder.parallelism = 1
    folder.open(positions)
    folder.read_all()
    assert Counter(folder.seen) == folder.expected
    assert reasons(folder) == {"file that changed after it was read": 1}
    folder.close()


@pytest.mark.parametrize("policy", ["fail", "drop"])
def test_a_file_that_is_replaced_before_it_is_opened_is_read_once(
    tmp_path: Path, policy: str
) -> None:
    folder = Folder(tmp_path, order="time", remember_files=2, on_bad_rows=policy)
    for number in range(6):
        folder.add(str(number), 1, time_s=1000 + number)
    folder.clock.advance(POLL_NS)
    assert folder.read(0, 10) == [("0", 0)]
    folder.add("1", 1, time_s=9000)
    while folder.read(0, 10):
        pass
    folder.read_all()
    folder.read_all()
    assert Counter(folder.seen) == {(str(number), 0): 1 for number in range(6)}
    assert not reasons(folder)
    folder.close()


def test_a_file_that_is_replaced_while_it_is_read_is_read_once(tmp_path: Path) -> None:
    folder = Folder(tmp_path, order="time", remember_files=2, on_bad_rows="drop")
    for number in range(6):
        folder.add(str(number), 2, time_s=1000 + number)
    folder.clock.advance(POLL_NS)
    assert folder.read(0, 1) == [("0", 0)]
    folder.add("0", 2, time_s=9000)
    folder.read_all()
    folder.read_all()
    assert Counter(name for name, _ in folder.seen) == {str(number): 2 for number in range(6)}
    assert reasons(folder) == {"file that changed while it was read": 1}
    folder.close()


def test_a_file_whose_time_goes_back_while_it_waits_is_read(tmp_path: Path) -> None:
    folder = Folder(tmp_path, order="time", remember_files=1)
    for number in range(6):
        path = folder.add(str(number), 1, time_s=1000 + number)
    for _ in range(4):
        folder.read(0, 1)
    os.utime(path, (500, 500))
    folder.clock.advance(POLL_NS)
    folder.read(0, 1)
    folder.restore(2)
    folder.read_all()
    assert Counter(folder.seen) == folder.expected
    folder.close()


@ORDERS
def test_a_link_to_itself_is_passed_over(tmp_path: Path, order: str) -> None:
    folder = Folder(tmp_path, order=order)
    path = folder.add("a", 1)
    (tmp_path / "b.csv").symlink_to("b.csv")
    (tmp_path / "c.csv").symlink_to("nothing")
    (tmp_path / "d.csv").symlink_to("a.csv/nothing")
    assert folder.read_all() == [("a", 0)]
    (tmp_path / "e.csv").symlink_to("e.csv")
    path.unlink()
    path.symlink_to(path)
    assert folder.read_all() == []
    waiting = [folder.add("f", 2), folder.add("g", 2)]
    folder.clock.advance(POLL_NS)
    folder.read(0, 1)
    waiting[1].unlink()
    waiting[1].symlink_to(waiting[1])
    with pytest.raises(InputError, match=r"g\.csv: it has vanished before it was read"):
        folder.read_all()
    folder.close()


@ORDERS
def test_a_file_out_of_reach_is_refused_by_its_name_or_counted(tmp_path: Path, order: str) -> None:
    for policy in ("fail", "drop"):
        (tmp_path / policy).mkdir()
        folder = Folder(tmp_path / policy, order=order, on_bad_rows=policy)
        folder.add("a", 1)
        folder.read_all()
        (tmp_path / policy / "b.csv").symlink_to(FAR)
        if policy == "fail":
            with pytest.raises(InputError, match=r"b\.csv: cannot be read \(File name too long\)"):
                folder.read_all()
        else:
            folder.read_all()
            folder.restore(3)
            folder.read_all()
        folder.close()
        if policy == "drop":
            assert folder.left_out == {"file that cannot be read": 1}


@ORDERS
def test_a_file_that_was_read_may_be_out_of_reach_for_a_while(tmp_path: Path, order: str) -> None:
    (tmp_path / "in").mkdir()
    folder = Folder(tmp_path / "in", order=order, remember_files=2)
    link, mounted = tmp_path / "in" / "a.csv", tmp_path / "mounted"
    folder.add("a", 2, time_s=1000).rename(tmp_path / "real")
    mounted.symlink_to("real")
    link.symlink_to(mounted)
    assert len(folder.read_all()) == 2
    for target in (FAR, "real"):
        mounted.unlink()
        mounted.symlink_to(target)
        assert folder.read_all() == []
        folder.restore(2)
        assert folder.read_all() == []
    for number in range(6):
        folder.add(f"b{number}", 1, time_s=2000 + number)
    folder.read_all()
    assert Counter(folder.seen) == folder.expected
    folder.close()


def test_a_begun_file_that_vanishes_before_it_is_continued_counts_once(tmp_path: Path) -> None:
    folder = Folder(tmp_path, on_bad_rows="drop")
    folder.add("a", 5)
    path = folder.add("b", 5)
    folder.read(0, 5)
    folder.read(0, 2)
    folder.restore(1)
    folder.add("0", 5)
    folder.clock.advance(POLL_NS)
    assert folder.read(0, 2) == [("0", 0), ("0", 1)]
    path.unlink()
    folder.read_all()
    assert reasons(folder) == {"file that vanished before it was read": 1}
    folder.close()


def test_what_is_known_of_files_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_read, "_WATCHED_FILES", 4)
    folder = Folder(tmp_path, 3, order="time", remember_files=3)
    for number in range(60):
        path = folder.add(f"{number:04}", 1, time_s=1000 + number)
        if number % 7 == 0:
            folder.read_all()
        path.unlink() if number % 7 == 0 else None
    folder.read_all()
    folder.restore(2)
    folder.read_all()
    for one in folder.positions():
        assert len(one["last"]) <= 4 + 3
    folder.close()


@ORDERS
def test_checkpoints_that_know_less_of_files_are_restored(tmp_path: Path, order: str) -> None:
    folder = Folder(tmp_path, 2, order=order)
    for number in range(5):
        path = folder.add(f"{number:04}", 1, time_s=1000 + number)
    folder.read_all()
    positions: list[Any] = [
        {**one, "last": [place[:3] for place in one["last"][-1:]]} for one in folder.positions()
    ]
    folder.close()
    folder.parallelism = 3
    folder.open(positions)
    assert folder.read_all() == []
    path.write_text("n,file\n")
    with pytest.raises(InputError, match=r"0004\.csv: it has changed after it was read"):
        folder.read_all()
    folder.close()


@pytest.mark.parametrize("policy", ["fail", "drop"])
@pytest.mark.parametrize("instances", [1, 2])
def test_other_columns_may_be_wanted_after_a_checkpoint(
    tmp_path: Path, policy: str, instances: int
) -> None:
    for kind, wanted in (
        ("csv", {"schema": {"n": "int32", "file": "string"}}),
        ("json_lines", {"schema": {"file": "string"}}),
        ("csv", {"schema": TYPES, "columns": ["n"]}),
        ("parquet", {"columns": ["file", "n"]}),
    ):
        path = tmp_path / f"{kind}-{len(wanted)}"
        path.mkdir()
        folder = Folder(path, kind=kind, on_bad_rows=policy)
        folder.add("a", 40)
        folder.add("b", 9)
        folder.read(0, 25)
        positions = folder.positions()
        folder.close()
        make: Any = whale.sources.growing_folder
        source = make(path, kind, **wanted).with_bad_rows(policy)
        rows: list[dict[str, Any]] = []
        for instance in range(instances):
            context = instance_context(instance, instances, clock=folder.clock)
            reader = source.open_at(context, positions)
            while batch := reader.read(100):
                rows += batch.to_pylist()
            assert reader.rejected == {}
            reader.close()
        names = wanted.get("columns") or list(wanted["schema"])
        every = [(name, n) for name, count in (("a", 40), ("b", 9)) for n in range(count)]
        left = [{"file": name, "n": n} for name, n in every if (name, n) not in folder.seen]
        assert sorted(map(repr, rows)) == sorted(
            repr({name: row[name] for name in names}) for row in left
        )
