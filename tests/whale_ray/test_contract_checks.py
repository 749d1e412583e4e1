"""`check_source`: whale-ray's own sources pass; each broken promise is found and named."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pandas
import pyarrow as pa
import pytest

import whale_ray as whale
from whale_ray.testing import (
    ContractError,
    ListSource,
    Pause,
    check_source,
    write_all,
)

ROWS = [{"n": number, "s": None if number % 5 == 0 else f"s{number}"} for number in range(23)]

COLUMNS = whale.Schema.of(n="int64", s="string")

# --- ours keep what they promise ------------------------------------------------------------


def files(folder: Path, name: str) -> whale.sources.Source:
    sink = getattr(whale.sinks, name)(folder / "in", overwrite=True)
    batch = whale.Batch.from_rows(ROWS, COLUMNS)
    write_all(sink, [batch.slice(0, 9)], [batch.slice(9, 12)], [batch.slice(12, 23)])
    source: whale.sources.Source = getattr(whale.sources, name)(folder / "in")
    return source


SOURCES: dict[str, Callable[[Path], whale.sources.Source]] = {
    "parquet": lambda folder: files(folder, "parquet"),
    "csv": lambda folder: files(folder, "csv"),
    "json_lines": lambda folder: files(folder, "json_lines"),
    "arrow": lambda folder: whale.sources.arrow(pa.Table.from_pylist(ROWS)),
    "pandas": lambda folder: whale.sources.pandas(pandas.DataFrame(ROWS)),
    "list": lambda folder: whale.sources.iterable(ROWS, schema=COLUMNS),
    "function": lambda folder: whale.sources.iterable(lambda: iter(ROWS), schema=COLUMNS),
    "resumed function": lambda folder: whale.sources.iterable(
        lambda: iter(ROWS), schema=COLUMNS, resume=lambda first: iter(ROWS[first:])
    ),
    "poisson": lambda folder: whale.sources.poisson(
        1e5, lambda numbers, _: {"n": numbers}, limit=50, seed=3
    ),
    "endless poisson": lambda folder: whale.sources.poisson(
        1e5, lambda numbers, _: {"n": numbers}, seed=3
    ),
    "test list": lambda folder: ListSource([*ROWS[:3], Pause(5), *ROWS[3:]], COLUMNS),
}


@pytest.mark.parametrize("name", list(SOURCES))
def test_our_sources_keep_their_promises(tmp_path: Path, name: str) -> None:
    check_source(lambda: SOURCES[name](tmp_path))


# --- broken promises are found --------------------------------------------------------------


class Numbers(whale.sources.Source):
    """The numbers to 20, kept as promised; each test breaks one promise of it."""

    def __init__(self, reader: type[Reader] | None = None) -> None:
        self.reader = reader or Reader

    def describe(self) -> str:
        return "numbers"

    def open(self, context: Any) -> whale.sources.SourceReader:
        return self.reader(list(range(20))[context.instance :: context.parallelism])


class Reader(whale.sources.SourceReader):
    def __init__(self, numbers: list[int]) -> None:
        self.numbers = numbers

    def read(self, max_rows: int) -> whale.Batch | None:
        now, self.numbers = self.numbers[:max_rows], self.numbers[max_rows:]
        return whale.Batch.from_pydict({"n": now}) if now else None

    @property
    def finished(self) -> bool:
        return not self.numbers


class TooMany(Reader):
    def read(self, max_rows: int) -> whale.Batch | None:
        return super().read(max_rows + 1)


class Nothing(Reader):
    def read(self, max_rows: int) -> whale.Batch | None:
        return whale.Batch.from_pydict({"n": [1]}).slice(0, 0)


class Lists(Reader):
    def read(self, max_rows: int) -> Any:
        return [1, 2]


class OtherColumns(Reader):
    def read(self, max_rows: int) -> whale.Batch | None:
        batch = super().read(min(max_rows, 7))
        return batch if self.numbers or batch is None else batch.with_column("more", batch["n"])


class Endless(Reader):
    def read(self, max_rows: int) -> whale.Batch | None:
        return None


class GoesOn(Reader):
    def read(self, max_rows: int) -> whale.Batch | None:
        return super().read(max_rows) or whale.Batch.from_pydict({"n": [0]})


class ClosesOnce(Reader):
    open = True

    def close(self) -> None:
        if not self.open:
            raise ValueError("closed")
        self.open = False


class LeavesOpen(Reader):
    kept: ClassVar[list[Any]] = []

    def __init__(self, numbers: list[int]) -> None:
        super().__init__(numbers)
        self.kept.append(Path(__file__).open("rb"))  # noqa: SIM115  # that is the mistake


class CountsWrongly(Reader):
    @property
    def rejected(self) -> Mapping[str, int]:
        return {"bad": -1}


READERS = {
    TooMany: "read(1) returned 2 rows: at least one and at most",
    Nothing: "returned 0 rows: at least one",
    Lists: "read() must return a Batch, not [1, 2]",
    OtherColumns: "a batch has the columns",
    Endless: "has nothing to read and never ends",
    GoesOn: "a reader that had finished went on",
    ClosesOnce: "close() raised ValueError('closed') when called again",
    LeavesOpen: "close() must close files and connections",
    CountsWrongly: "rejected must map reasons to numbers of rows",
}


class Told(Numbers):
    def describe(self) -> str:
        return "two\nlines"


class Locked(Numbers):
    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


class OtherSchema(Numbers):
    def schema(self) -> whale.Schema:
        return whale.Schema.of(n="float64")


class Forgetful(Numbers):
    opened = 0

    def open(self, context: Any) -> whale.sources.SourceReader:
        type(self).opened += 1
        return Reader(list(range(type(self).opened, 20)))


class AllToEach(Numbers):
    def open(self, context: Any) -> whale.sources.SourceReader:
        return Reader(list(range(20)))


class LosesSome(Numbers):
    def open(self, context: Any) -> whale.sources.SourceReader:
        share = 20 // context.parallelism
        return Reader(list(range(20))[context.instance * share : (context.instance + 1) * share])


class Shared(Numbers):
    """Its readers move one position."""

    def open(self, context: Any) -> whale.sources.SourceReader:
        self.numbers = list(range(20))[context.instance :: context.parallelism]
        return SharedReader(self)


class SharedReader(whale.sources.SourceReader):
    def __init__(self, source: Any) -> None:
        self.source = source

    def read(self, max_rows: int) -> whale.Batch | None:
        return Reader.read(self.source, max_rows)

    @property
    def finished(self) -> bool:
        return not self.source.numbers


class ReleasesOnce(Numbers):
    released = False

    def release(self) -> None:
        if self.released:
            raise ValueError("released")
        self.released = True


BROKEN_SOURCES: dict[Callable[[], Any], str] = {
    Told: "describe() must return one line",
    Locked: "cannot be pickled",
    OtherSchema: "a batch has the columns",
    Forgetful: "did not read the same rows again",
    AllToEach: "2 instances of AllToEach did not read the input once together: 20 too many",
    LosesSome: "3 instances of LosesSome did not read the input once together: 2 missing",
    Shared: "disturbed each other",
    ReleasesOnce: "release() raised ValueError('released') when called again",
    list: "does not derive from whale.sources.Source",
}


@pytest.mark.parametrize("reader", list(READERS), ids=lambda one: one.__name__)
def test_a_readers_broken_promise_is_named(reader: type[Reader]) -> None:
    with pytest.raises(ContractError) as error:
        check_source(lambda: Numbers(reader))
    assert READERS[reader] in str(error.value)
    for file in LeavesOpen.kept:
        file.close()


class BesideOthers(Reader):
    """Another thread of the process opens a socket once, while a reader is open."""

    others: ClassVar[list[socket.socket]] = []

    def __init__(self, numbers: list[int]) -> None:
        super().__init__(numbers)
        if not self.others:
            self.others.append(socket.socket())


def test_what_others_in_the_process_open_is_not_the_readers() -> None:
    check_source(lambda: Numbers(BesideOthers))
    (opened,) = BesideOthers.others
    opened.close()


@pytest.mark.parametrize("make", list(BROKEN_SOURCES), ids=lambda one: one.__name__)
def test_a_sources_broken_promise_is_named(make: Callable[[], Any]) -> None:
    with pytest.raises(ContractError) as error:
        check_source(make)
    assert BROKEN_SOURCES[make] in str(error.value)


def test_what_cannot_be_read_again_is_only_read() -> None:
    class Once(Forgetful):
        replayable = False

    check_source(Once)
    check_source(Numbers)
