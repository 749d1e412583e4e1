"""`check_sink` for checkpoints: whale-ray's own sinks pass; each broken promise is found and named.

The sink that is broken keeps its output in one file, which it replaces as a whole.
"""

from __future__ import annotations

import itertools
import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pyarrow.parquet as pq
import pytest

import whale_ray as whale
from whale_ray.configs.settings import Settings
from whale_ray.ray_bridge.dataset import ray_dataset_sink
from whale_ray.spark.sink import spark_sink
from whale_ray.testing import ContractError, check_sink
from whale_ray.testing.interruption import InjectedError, Interruption


def read_parquet(sink: Any) -> Iterator[Mapping[str, Any]]:
    for path in sorted(Path(sink.folder.path).glob("part-*")):
        with pq.ParquetFile(path) as file:
            yield from file.read().to_pylist()


@pytest.mark.long
def test_100_000_rows_are_in_files_once_whatever_fails(tmp_path: Path) -> None:
    folders = map(tmp_path.joinpath, map(str, itertools.count()))

    def make() -> whale.sinks.Sink:
        return whale.sinks.parquet(next(folders))

    check_sink(make, read_parquet, ids=100_000, failure_rates=(0.0, 0.1, 0.3))


@pytest.mark.long
@pytest.mark.parametrize("make", [ray_dataset_sink, spark_sink])
def test_results_for_ray_and_spark_are_there_once(make: Callable[[], whale.sinks.Sink]) -> None:
    def read(sink: Any) -> Iterator[Mapping[str, Any]]:
        return read_parquet(sink.files)

    check_sink(lambda: make().configured(Settings()), read, ids=100_000)


# --- broken promises are found --------------------------------------------------------------------


class Ledger(whale.sinks.Sink):
    """Rows and commits in one file; each test breaks one promise of it."""

    delivery: ClassVar[Any] = "exactly once"

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def describe(self) -> str:
        return f"ledger {self.path}"

    def open(self, context: Any, token: str) -> whale.sinks.SinkWriter:
        return LedgerWriter(context.instance)

    def add(self, key: str, staged: Sequence[whale.sinks.Staged]) -> None:
        rows, keys = self.content()
        if key not in keys:
            self.replace([*rows, *rows_of(staged)], [*keys, key])

    def commit(self, commit: whale.sinks.CommitId, staged: Sequence[whale.sinks.Staged]) -> None:
        self.add(f"{commit.lineage} {commit.epoch}", staged)

    def recover(self, token: str, staged: Sequence[whale.sinks.Staged], *, bounded: bool) -> None:
        pass

    def publish(self, token: str, staged: Sequence[whale.sinks.Staged]) -> whale.sinks.SinkResult:
        self.add(f"all of {token}", staged)
        return whale.sinks.SinkResult(rows=len(rows_of(staged)))

    def content(self) -> tuple[list[Any], list[str]]:
        if not os.path.exists(self.path):
            return [], []
        rows, keys = json.loads(Path(self.path).read_text())
        return rows, keys

    def replace(self, rows: list[Any], keys: list[str]) -> None:
        Path(self.path + "-new").write_text(json.dumps([rows, keys]))
        os.replace(self.path + "-new", self.path)


class LedgerWriter(whale.sinks.SinkWriter):
    def __init__(self, instance: int) -> None:
        self.instance = instance
        self.rows: list[Any] = []

    def write(self, batch: whale.Batch) -> None:
        self.rows += batch.to_pylist()

    def stage(self) -> whale.sinks.Staged:
        payload, rows = json.dumps(self.rows).encode(), len(self.rows)
        return whale.sinks.Staged(self.instance, rows, payload=payload)

    def stage_epoch(self, epoch: int) -> whale.sinks.Staged | None:
        if not self.rows:
            return None
        staged = self.stage()
        self.rows = []
        return staged

    def abort(self) -> None:
        self.rows = []


def rows_of(staged: Sequence[whale.sinks.Staged]) -> list[Any]:
    return [row for part in staged for row in json.loads(part.payload or b"[]")]


def check(kind: type[Ledger], tmp_path: Path, **options: Any) -> None:
    paths = map(tmp_path.joinpath, map(str, itertools.count()))
    check_sink(lambda: kind(next(paths)), lambda sink: sink.content()[0], ids=240, **options)


def refuse(kind: type[Ledger], tmp_path: Path, message: str, **options: Any) -> None:
    with pytest.raises(ContractError, match=message):
        check(kind, tmp_path, **options)


def test_a_sink_that_keeps_its_promises_passes(tmp_path: Path) -> None:
    check(Ledger, tmp_path)


def test_a_commit_that_counts_twice_is_found(tmp_path: Path) -> None:
    class Twice(Ledger):
        def commit(
            self, commit: whale.sinks.CommitId, staged: Sequence[whale.sinks.Staged]
        ) -> None:
            rows, keys = self.content()
            self.replace([*rows, *rows_of(staged)], keys)

    refuse(Twice, tmp_path, r"after .*commit.* too many.* note the commit's lineage and epoch")


def test_a_commit_that_is_known_by_its_epoch_alone_is_found(tmp_path: Path) -> None:
    class EpochAlone(Ledger):
        def commit(
            self, commit: whale.sinks.CommitId, staged: Sequence[whale.sinks.Staged]
        ) -> None:
            self.add(str(commit.epoch), staged)

    refuse(
        EpochAlone, tmp_path, "restored from an older epoch .* missing.* by its lineage and epoch"
    )


def test_a_commit_that_cannot_be_repeated_is_found(tmp_path: Path) -> None:
    class Strict(Ledger):
        def add(self, key: str, staged: Sequence[whale.sinks.Staged]) -> None:
            assert key.startswith("all") or key not in self.content()[1], "again"
            super().add(key, staged)

    refuse(Strict, tmp_path, r"commit\(\) raised AssertionError\(.*when it was repeated")


def test_rows_and_commits_in_two_steps_are_found(tmp_path: Path) -> None:
    class TwoSteps(Ledger):
        def replace(self, rows: list[Any], keys: list[str]) -> None:
            super().replace(rows, self.content()[1])
            super().replace(rows, keys)

    refuse(TwoSteps, tmp_path, "too many")


def test_a_publication_without_earlier_epochs_is_found(tmp_path: Path) -> None:
    class TailAlone(Ledger):
        def publish(
            self, token: str, staged: Sequence[whale.sinks.Staged]
        ) -> whale.sinks.SinkResult:
            return super().publish(token, [part for part in staged if part.epoch is None])

    refuse(TailAlone, tmp_path, r"publish\(\) returned 120 rows of 240")


def test_a_publication_that_is_forgotten_by_a_restored_job_is_found(tmp_path: Path) -> None:
    class Forgetful(Ledger):
        def recover(
            self, token: str, staged: Sequence[whale.sinks.Staged], *, bounded: bool
        ) -> None:
            rows, keys = self.content()
            self.replace(rows, [key for key in keys if not key.startswith("all")])

    told = r"after a publish\(\) that ended after it was done, .* 60 too many"
    refuse(Forgetful, tmp_path, told, failure_rates=(0.0,))


def test_a_sink_that_does_not_go_on_behind_its_publication_is_found(tmp_path: Path) -> None:
    class Gone(Ledger):
        def recover(
            self, token: str, staged: Sequence[whale.sinks.Staged], *, bounded: bool
        ) -> None:
            if f"all of {token}" in self.content()[1]:
                msg = "what was staged is gone"
                raise whale.errors.OutputError(msg)

    told = r"recover\(\) raised OutputError\('what was staged is gone.* died as it published"
    refuse(Gone, tmp_path, told, failure_rates=(0.0,))


def test_rows_that_are_staged_again_are_found(tmp_path: Path) -> None:
    class KeepingWriter(LedgerWriter):
        def stage_epoch(self, epoch: int) -> whale.sinks.Staged | None:
            return self.stage() if self.rows else None

    class Keeping(Ledger):
        def open(self, context: Any, token: str) -> whale.sinks.SinkWriter:
            return KeepingWriter(context.instance)

    refuse(Keeping, tmp_path, r"stage_epoch\(\) without rows must return None")


class CuttingWriter(LedgerWriter):
    """Sets rows apart at a marker; `staged_of` stages them later."""

    def cut_epoch(self, epoch: int) -> Callable[[], whale.sinks.Staged] | None:
        if not self.rows:
            return None
        rows, self.rows = self.rows, []
        return lambda: self.staged_of(rows)

    def staged_of(self, rows: list[Any]) -> whale.sinks.Staged:
        return whale.sinks.Staged(self.instance, len(rows), payload=json.dumps(rows).encode())


def with_writer(kind: type[LedgerWriter]) -> type[Ledger]:
    class Cutting(Ledger):
        def open(self, context: Any, token: str) -> whale.sinks.SinkWriter:
            return kind(context.instance)

    return Cutting


def test_a_sink_that_sets_rows_apart_passes(tmp_path: Path) -> None:
    check(with_writer(CuttingWriter), tmp_path)


def test_rows_that_are_lost_behind_a_cut_are_found(tmp_path: Path) -> None:
    class LosesTheNext(CuttingWriter):
        def staged_of(self, rows: list[Any]) -> whale.sinks.Staged:
            self.rows = []  # with those that have come since the cut
            return super().staged_of(rows)

    told = r"what cut_epoch\(\) returned has staged 7 rows of 9: .* all of them and no others"
    refuse(with_writer(LosesTheNext), tmp_path, told)


def test_rows_that_are_lost_at_a_cut_are_found(tmp_path: Path) -> None:
    """Also if the writer tells of them as if they were there."""

    class LosesOne(CuttingWriter):
        def staged_of(self, rows: list[Any]) -> whale.sinks.Staged:
            return replace(super().staged_of(rows[1:]), rows=len(rows))

    class Counting(Ledger):
        def open(self, context: Any, token: str) -> whale.sinks.SinkWriter:
            return LosesOne(context.instance)

        def publish(
            self, token: str, staged: Sequence[whale.sinks.Staged]
        ) -> whale.sinks.SinkResult:
            super().publish(token, staged)
            return whale.sinks.SinkResult(rows=sum(part.rows for part in staged))

    refuse(Counting, tmp_path, "its output is wrong: .*missing")


def test_rows_behind_a_cut_that_are_staged_with_it_are_found(tmp_path: Path) -> None:
    class StagesTheNext(CuttingWriter):
        is_cut = False

        def cut_epoch(self, epoch: int) -> Callable[[], whale.sinks.Staged] | None:
            if self.is_cut or not self.rows:
                return None
            self.is_cut = True
            return self.stage_all

        def stage_all(self) -> whale.sinks.Staged:
            self.is_cut, (rows, self.rows) = False, (self.rows, [])
            return self.staged_of(rows)

    refuse(with_writer(StagesTheNext), tmp_path, "has staged 12 rows of 10")


def test_a_cut_that_cannot_be_staged_again_is_found(tmp_path: Path) -> None:
    class StagesOnce(CuttingWriter):
        def staged_of(self, rows: list[Any]) -> whale.sinks.Staged:
            taken = rows[:]
            rows.clear()
            return super().staged_of(taken)

    refuse(with_writer(StagesOnce), tmp_path, "has staged 0 rows of 10: .* again if it raised")


def test_a_cut_that_raises_when_it_is_staged_again_is_found(tmp_path: Path) -> None:
    class Insists(CuttingWriter):
        def staged_of(self, rows: list[Any]) -> whale.sinks.Staged:
            assert None not in rows
            rows.append(None)
            staged = super().staged_of(rows[:-1])
            rows.pop()
            return staged

    told = r"what cut_epoch\(\) returned raised AssertionError\(.*when it was called again"
    refuse(with_writer(Insists), tmp_path, told)


def test_a_cut_that_forgets_its_rows_at_its_last_line_is_found(tmp_path: Path) -> None:
    """By no accident: without failures at random, too, stagings end at each of their lines."""

    class ForgetsAtLast(CuttingWriter):
        def staged_of(self, rows: list[Any]) -> whale.sinks.Staged:
            staged = super().staged_of(rows)
            rows.clear()
            return staged

    told = "has staged 0 rows of 1: .* again if it raised"
    refuse(with_writer(ForgetsAtLast), tmp_path, told, failure_rates=(0.0,))


@pytest.mark.parametrize(
    ("cut", "told"),
    [
        (whale.sinks.Staged(0, 1), r"cut_epoch\(\) must return a function .*, not Staged\("),
        (lambda: None, r"what cut_epoch\(\) returned of instance 0 must return Staged\(0, …\)"),
    ],
)
def test_a_cut_that_is_none_is_named(tmp_path: Path, cut: Any, told: str) -> None:
    class Wrong(CuttingWriter):
        def cut_epoch(self, epoch: int) -> Callable[[], whale.sinks.Staged] | None:
            return None if super().cut_epoch(epoch) is None else cut

    refuse(with_writer(Wrong), tmp_path, told)


def test_rows_that_are_visible_too_early_are_found(tmp_path: Path) -> None:
    class Early(Ledger):
        def recover(
            self, token: str, staged: Sequence[whale.sinks.Staged], *, bounded: bool
        ) -> None:
            self.add(f"early {len(staged)}", staged)

    refuse(Early, tmp_path, r"before publish\(\) of a job with checkpoints .* too many.* invisible")


def test_staged_rows_that_a_restart_removes_are_found(tmp_path: Path) -> None:
    class Forgetful(Ledger):
        def commit(
            self, commit: whale.sinks.CommitId, staged: Sequence[whale.sinks.Staged]
        ) -> None:
            if not os.path.exists(self.path + "-lost"):
                super().commit(commit, staged)

        def recover(
            self, token: str, staged: Sequence[whale.sinks.Staged], *, bounded: bool
        ) -> None:
            Path(self.path + "-lost").touch()

    refuse(Forgetful, tmp_path, "missing")


def test_epochs_without_a_delivery_are_found(tmp_path: Path) -> None:
    class Silent(Ledger):
        delivery = None

    refuse(Silent, tmp_path, r"has recover\(\) but no delivery")


def test_a_call_is_ended_at_each_of_its_lines() -> None:
    done: list[int] = []

    def three_lines() -> int:
        done.append(1)
        done.append(2)
        return 3

    interruption = Interruption([__name__.split(".")[0]])
    assert interruption.run(three_lines) == 3
    assert interruption.lines == 3
    for line in (1, 2, 3):
        done.clear()
        with pytest.raises(InjectedError):
            interruption.run(three_lines, line)
        assert len(done) == line - 1


def test_a_call_is_never_ended_where_a_lock_would_be_held_for_good() -> None:
    lock = threading.Lock()

    @contextmanager
    def held() -> Iterator[int]:
        try:
            with lock:
                yield 1
        finally:
            done.append("finally")

    def answer() -> object:
        with lock:
            return done[-1]

    def hold() -> None:
        with held() as one:
            done.append(one)
            done.append(2)
        with lock:
            done.append(3)
        answer()
        try:
            with held():
                raise KeyError
        except KeyError:
            done.append(4)

    done: list[Any] = []
    interruption = Interruption([__name__.split(".")[0]])
    interruption.run(hold)
    for line in range(1, interruption.lines + 1):
        with suppress(InjectedError):
            interruption.run(hold, line)
        assert not lock.locked(), line
