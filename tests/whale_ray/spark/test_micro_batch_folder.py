"""Who may hand over micro-batches into a folder, and in which order."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.whale_ray.spark.handed_over import COLUMNS, drained, hand_over, opened, written
from whale_ray.configs.errors import InputError, UsageError
from whale_ray.spark.micro_batch_folder import MicroBatchFolder
from whale_ray.spark.micro_batch_source import micro_batches
from whale_ray.transport.wire.types import DataType, Schema


def read(folder: Path) -> list[int]:
    """Return the ids of all rows in a folder."""
    return drained(opened(micro_batches(folder), 1)[0])


def _another_query(folder: Path) -> None:
    hand_over(folder, 0, range(3))
    MicroBatchFolder(str(folder)).begin("query-2", COLUMNS)


def _other_columns(folder: Path) -> None:
    hand_over(folder, 0, range(3))
    MicroBatchFolder(str(folder)).begin("query-1", Schema.of(id="int64"))


def _another_time_zone(folder: Path) -> None:
    here = MicroBatchFolder(str(folder))
    here.begin("query-1", Schema.of(id="int64", day=DataType.parse("timestamp[us, tz=UTC]")))
    here.add(0, written(here, range(3)))
    here.begin("query-1", Schema.of(id="int64", day=DataType.parse("timestamp[us, tz=Asia/Tokyo]")))


def _numbers_that_go_back(folder: Path) -> None:
    for number in (0, 1, 3):
        hand_over(folder, number, range(3))
    hand_over(folder, 2, range(3, 6))


def _damaged_query(folder: Path) -> None:
    hand_over(folder, 0, range(3))
    (folder / "query.json").write_bytes(b"")
    hand_over(folder, 1, range(3))


def _damaged_query_of_a_job(folder: Path) -> None:
    hand_over(folder, 0, range(3))
    (folder / "query.json").write_text('{"query": "query-1", "columns": [["id", "int65"]]}')
    micro_batches(folder).schema()


def _damaged_last(folder: Path) -> None:
    hand_over(folder, 0, range(3))
    (folder / "last.json").write_text("[1]")
    hand_over(folder, 1, range(3))


def _without_a_query(folder: Path) -> None:
    hand_over(folder, 0, range(3))
    (folder / "query.json").unlink()
    (folder / "query.json").symlink_to("nowhere")  # so that it is not written anew
    hand_over(folder, 1, range(3))


def _another_driver(folder: Path) -> None:
    with MicroBatchFolder(str(folder)).lock(0, 0):
        hand_over(folder, 0, range(3))


REFUSED: dict[str, tuple[Callable[[Path], object], type[Exception], str]] = {
    "another query": (_another_query, UsageError, "micro-batches of another query (query-1)"),
    "other columns": (
        _other_columns,
        UsageError,
        "of the columns (id: int64, day: date32), and those of the query are (id: int64) now: give",
    ),
    "another time zone": (
        _another_time_zone,
        UsageError,
        "day: timestamp[us, tz=Asia/Tokyo]) now: set spark.sql.session.timeZone as it was",
    ),
    "numbers that go back": (
        _numbers_that_go_back,
        UsageError,
        "micro-batch 2 comes after 3, which",
    ),
    "a damaged query": (_damaged_query, InputError, "query.json' is damaged: bring it back"),
    "a damaged query of a job": (_damaged_query_of_a_job, InputError, "query.json' is damaged"),
    "a damaged last one": (_damaged_last, InputError, "last.json' is damaged: bring it back"),
    "no query": (_without_a_query, UsageError, "has micro-batches, but no query.json"),
    "another driver": (
        _another_driver,
        InputError,
        "micro-batch 0: for 0 s another driver has been writing into",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_taken_is_refused_in_one_line(tmp_path: Path, case: str) -> None:
    refuse, kind, told = REFUSED[case]
    with pytest.raises(kind) as error:
        refuse(tmp_path / "batches")
    assert told in str(error.value)
    assert len(str(error.value).splitlines()) == 1


def test_a_query_whose_first_batch_failed_may_be_mended(tmp_path: Path) -> None:
    """Its folder has no micro-batch, which could be another's."""
    here = MicroBatchFolder(str(tmp_path))
    here.begin("query-0", COLUMNS)
    here.begin("query-1", Schema.of(id="int64"))
    hand_over(tmp_path, 0, range(3))
    assert micro_batches(tmp_path).schema() == COLUMNS
    assert read(tmp_path) == [0, 1, 2]


def test_one_of_two_drivers_takes_a_micro_batch(tmp_path: Path) -> None:
    """Also where no lock keeps the second away, as on file systems that have none."""
    hand_over(tmp_path, 0, range(3))
    slow = MicroBatchFolder(str(tmp_path))
    slow.begin("query-1", COLUMNS)
    assert not slow.has(1)
    hand_over(tmp_path, 1, range(3, 6))
    slow.add(1, written(slow, range(3, 6)))
    assert read(tmp_path) == list(range(6))
    place = written(slow, range(3, 6))
    hand_over_later(tmp_path, place)
    with pytest.raises(UsageError, match="micro-batch 1 comes after 2"):
        slow.add(1, place)
    assert read(tmp_path) == list(range(9))


def hand_over_later(folder: Path, place: str) -> None:
    """Hand over micro-batch 2, which removes what is hidden, but for `place`."""
    elsewhere = folder.parent / "elsewhere"
    Path(place).rename(elsewhere)
    hand_over(folder, 2, range(6, 9))
    elsewhere.rename(place)


def test_the_lock_is_awaited(tmp_path: Path) -> None:
    here = MicroBatchFolder(str(tmp_path))
    taken = threading.Event()

    def take() -> None:
        with here.lock(0, 60):
            taken.set()

    other = threading.Thread(target=take)
    with here.lock(0, 0):
        other.start()
        assert not taken.wait(0.2)
    other.join()
    assert taken.is_set()


def test_one_of_two_queries_begins_in_a_new_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second finds no query, either, and notes itself after the first."""
    here = MicroBatchFolder(str(tmp_path))
    write = MicroBatchFolder._write

    def second_to_write(self: MicroBatchFolder, name: str, told: object, *, replace: bool) -> None:
        monkeypatch.setattr(MicroBatchFolder, "_write", write)
        self.begin("query-1", COLUMNS)
        write(self, name, told, replace=replace)

    monkeypatch.setattr(MicroBatchFolder, "_write", second_to_write)
    with pytest.raises(UsageError, match=r"another query \(query-1\)"):
        here.begin("query-2", COLUMNS)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["query.json"]
