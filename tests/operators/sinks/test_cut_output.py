"""Output that is completed beside the loop: what is done again, what is lost, what is freed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from whale_ray import sinks
from whale_ray.configs.errors import AttemptLostError, OutputError
from whale_ray.operators.kafka.messages import MessageTable
from whale_ray.operators.sinks import epoch_part
from whale_ray.operators.sinks.base import CommitId
from whale_ray.operators.sinks.cut_output import CutOutput
from whale_ray.testing import instance_context
from whale_ray.transport.wire.batch import Batch


class Recorded(CutOutput[str]):
    """Notes its calls; each of them may raise, or wait."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.first: dict[str, Callable[[], None]] = {}

    def _call(self, name: str) -> None:
        self.calls.append(name)
        self.first.pop(name, lambda: None)()

    def _encode(self) -> None:
        self._call("encode")

    def _sync(self) -> str:
        self._call("sync")
        return "done"

    def _free(self) -> None:
        self._call("free")


def full() -> None:
    msg = "no space left"
    raise OutputError(msg)


def test_what_cannot_be_synced_is_synced_again_without_encoding_it_twice() -> None:
    output = Recorded()
    output.first["sync"] = full
    with pytest.raises(OutputError, match="no space left"):
        output.complete()
    output.check()
    assert output.complete() == "done"
    output.drop()
    assert output.calls == ["encode", "sync", "sync"]


def test_rows_that_could_not_be_encoded_are_gone_and_it_says_so() -> None:
    output = Recorded()
    output.first["encode"] = full
    with pytest.raises(OutputError, match="no space left"):
        output.complete()
    with pytest.raises(AttemptLostError, match="no space left"):
        output.complete()
    with pytest.raises(AttemptLostError, match="no space left"):
        output.check()
    output.drop()
    assert output.calls == ["encode", "free"]


def test_what_was_dropped_is_not_completed_any_more() -> None:
    """The thread may come to it after the attempt: it must not begin a file that nobody removes."""
    output = Recorded()
    output.drop()
    with pytest.raises(OutputError, match="the attempt is over"):
        output.complete()
    assert "encode" not in output.calls and not output.is_complete


@pytest.mark.parametrize("fails", [False, True])
def test_what_is_dropped_while_it_is_being_completed_is_freed_behind_that(fails: bool) -> None:
    output = Recorded()
    entered, dropped = threading.Event(), threading.Event()

    def wait() -> None:
        entered.set()
        assert dropped.wait(60)
        if fails:
            full()

    output.first["sync"] = wait
    outcome: list[object] = []

    def complete() -> None:
        try:
            outcome.append(output.complete())
        except OutputError as error:
            outcome.append(str(error))

    thread = threading.Thread(target=complete)
    thread.start()
    assert entered.wait(60)
    output.drop()
    assert output.calls == ["encode", "sync"]
    dropped.set()
    thread.join()
    assert outcome == ["no space left" if fails else "done"]
    assert output.calls == ["encode", "sync", *(["free"] if fails else [])]


def rows(*values: int) -> Batch:
    return Batch.from_pydict({"id": list(values)})


@pytest.mark.parametrize("make", [sinks.parquet, sinks.csv])
def test_a_part_that_was_not_synced_has_its_rows_at_the_next_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], sinks.Sink]
) -> None:
    """Rows that came meanwhile are in a part of their own."""
    sink = make(tmp_path / "out")
    writer = sink.open(instance_context(), "job")
    failing = [True]
    genuine = epoch_part.sync_folder

    def sync(folder: str) -> None:
        if failing:
            failing.pop()
            raise OSError(28, "No space left on device")
        genuine(folder)

    monkeypatch.setattr(epoch_part, "sync_folder", sync)
    writer.write(rows(1, 2))
    first = writer.cut_epoch(1)
    writer.write(rows(3))
    second = writer.cut_epoch(2)
    assert first is not None and second is not None
    with pytest.raises(OutputError, match="No space left"):
        first()
    staged = [first(), second()]
    writer.abort()
    assert [part.rows for part in staged] == [2, 1]
    sink.commit(CommitId("job", 2), staged)
    content = sorted((tmp_path / "out").glob("part-*"))
    assert [str(part.path).rsplit("/", 1)[1] for part in staged] == [one.name for one in content]
    assert [part.nbytes for part in staged] == [one.stat().st_size for one in content]


@pytest.mark.parametrize("name", ["collect", "kafka"])
def test_rows_in_memory_that_were_not_serialized_are_there_the_next_time(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    failing = [True]

    def fails_once(genuine: Callable[..., Any]) -> Callable[..., Any]:
        def serialize(*arguments: Any) -> Any:
            if failing:
                failing.pop()
                raise MemoryError
            return genuine(*arguments)

        return serialize

    if name == "kafka":
        sink: sinks.Sink = sinks.kafka("topic", "nowhere:9092")
        monkeypatch.setattr(MessageTable, "to_bytes", fails_once(MessageTable.to_bytes))
    else:
        sink = sinks.collect()
        monkeypatch.setattr(pa.ipc, "new_stream", fails_once(pa.ipc.new_stream))
    writer = sink.open(instance_context(), "job")
    writer.write(rows(1, 2))
    stage = writer.cut_epoch(1)
    assert stage is not None
    with pytest.raises(MemoryError):
        stage()
    staged = stage()
    assert staged.rows == 2
    assert staged.payload is not None
    if name == "kafka":
        table, _ = MessageTable.of_bytes(staged.payload)
        assert [m["value"] for m in table.messages()] == [b'{"id":1}', b'{"id":2}']
    else:
        assert pa.ipc.open_stream(staged.payload).read_all()["id"].to_pylist() == [1, 2]
