"""`check_sink`: whale-ray's own sinks pass; each broken promise is found and named."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pandas
import pyarrow.parquet as pq
import pytest

import whale_ray as whale
from tests.whale_ray.test_contract_checks import LeavesOpen
from whale_ray.configs.settings import Settings
from whale_ray.ray_bridge.dataset import ray_dataset_sink
from whale_ray.spark.sink import spark_sink
from whale_ray.testing import CollectingSink, ContractError, check_sink

# --- ours keep what they promise ------------------------------------------------------------


class Outputs:
    """Makes sinks with outputs of their own, and reads these as somebody else would."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folders = map(folder.joinpath, map(str, itertools.count()))
        self._name = name

    def make(self) -> whale.sinks.Sink:
        sink: whale.sinks.Sink = getattr(whale.sinks, self._name)(next(self._folders))
        return sink

    def read(self, sink: Any) -> Iterator[Mapping[str, Any]]:
        for path in sorted(Path(sink.folder.path).glob("part-*")):
            if self._name == "parquet":
                with pq.ParquetFile(path) as file:
                    yield from file.read().to_pylist()
            elif self._name == "csv":
                frame = pandas.read_csv(path, keep_default_na=False, na_values=[""])
                yield from frame.astype(object).where(frame.notna(), None).to_dict("records")
            else:
                yield from map(json.loads, path.read_text().splitlines())


@pytest.mark.long
@pytest.mark.parametrize("name", ["parquet", "csv", "json_lines"])
def test_our_sinks_of_files_keep_their_promises(tmp_path: Path, name: str) -> None:
    outputs = Outputs(tmp_path, name)
    check_sink(outputs.make, outputs.read)


@pytest.mark.long
def test_our_other_sinks_keep_their_promises() -> None:
    check_sink(CollectingSink, lambda sink: sink.rows if sink._holder.result else ())
    check_sink(whale.sinks.print)
    check_sink(lambda: whale.sinks.each(lambda row: None))
    for make in (ray_dataset_sink, spark_sink):
        check_sink(lambda make=make: make().configured(Settings()))


# --- broken promises are found --------------------------------------------------------------


class Memory(whale.sinks.Sink):
    """Rows in this process, by the key of the sink; each test breaks one promise of it."""

    publishes_parts = True
    outputs: ClassVar[dict[int, dict[str, list[Any]]]] = {}
    shared: ClassVar[dict[Any, list[Any]]] = {}
    keys = itertools.count()

    def __init__(self) -> None:
        self.key = next(self.keys)
        self.outputs[self.key] = {}

    def describe(self) -> str:
        return "memory"

    def open(self, context: Any, token: str) -> Any:
        return Keeper(self, context.instance, token)

    def publish(self, token: str, staged: Sequence[whale.sinks.Staged]) -> whale.sinks.SinkResult:
        rows = [row for part in staged for row in json.loads(part.payload or b"[]")]
        self.outputs[self.key][token] = rows
        return whale.sinks.SinkResult(rows=len(rows))

    @classmethod
    def rows(cls, sink: Memory) -> list[Any]:
        return [row for rows in cls.outputs[sink.key].values() for row in rows]


class Keeper(whale.sinks.SinkWriter):
    def __init__(self, sink: Memory, instance: int, token: str) -> None:
        self.sink, self.instance, self.token = sink, instance, token
        self.kept: list[Any] = []
        self.part = 0

    def write(self, batch: whale.Batch) -> None:
        self.kept += batch.to_pylist()

    def stage(self) -> whale.sinks.Staged:
        payload = json.dumps(self.kept).encode()
        return whale.sinks.Staged(self.instance, len(self.kept), payload=payload)

    def abort(self) -> None:
        self.kept = []

    def publish_part(self) -> whale.sinks.Staged | None:
        if not self.kept:
            return None
        staged, self.kept = self.stage(), []
        self.part += 1
        self.sink.publish(f"{self.token} {self.instance} {self.part}", [staged])
        return staged


def with_writer(**methods: Any) -> type[Memory]:
    """Return the sink with other methods of its writer."""
    writer = type("Broken", (Keeper,), methods)

    class Broken(Memory):
        def open(self, context: Any, token: str) -> Any:
            return writer(self, context.instance, token)

    return Broken


def with_sink(**methods: Any) -> type[Memory]:
    return type("Broken", (Memory,), methods)


def shows_at_once(self: Any, batch: whale.Batch) -> None:
    Keeper.write(self, batch)
    Memory.publish(self.sink, "early", [Keeper.stage(self)])


def shows_when_staged(self: Any) -> whale.sinks.Staged:
    staged = Keeper.stage(self)
    Memory.publish(self.sink, f"early {self.instance}", [staged])
    return staged


def keeps_views(self: Any, batch: whale.Batch) -> None:
    self.views = [*getattr(self, "views", ()), batch]


def stages_views(self: Any) -> whale.sinks.Staged:
    self.kept = [row for view in getattr(self, "views", ()) for row in view.to_pylist()]
    return Keeper.stage(self)


def appends(self: Any, token: str, staged: Any) -> whale.sinks.SinkResult:
    earlier = self.outputs[self.key].get(token, [])
    result = Memory.publish(self, token, staged)
    self.outputs[self.key][token] += earlier
    return result


def loses_an_instance(self: Any, token: str, staged: Any) -> whale.sinks.SinkResult:
    return Memory.publish(self, token, staged[:1])


def discards_all(self: Any, token: str) -> None:
    self.outputs[self.key].clear()


def shows_what_is_aborted(self: Any) -> None:
    Memory.publish(self.sink, f"{self.token} late {self.instance}", [Keeper.stage(self)])


def aborts_once(self: Any) -> None:
    del self.kept


def loses_its_number(self: Any) -> whale.sinks.Staged:
    return whale.sinks.Staged(0, 0)


def keeps_part(self: Any) -> whale.sinks.Staged:
    staged: whale.sinks.Staged = Keeper.stage(self)
    return staged


def leaves_open(self: Any, batch: whale.Batch) -> None:
    Keeper.write(self, batch)
    LeavesOpen.kept.append(Path(__file__).open("rb"))  # noqa: SIM115  # that is the mistake


def shares_rows(self: Any, batch: whale.Batch) -> None:
    """Keep rows where the same instance of another attempt finds them."""
    self.kept = self.sink.shared.setdefault((self.sink.key, self.instance), [])
    Keeper.write(self, batch)


def counts_once(self: Any, token: str, staged: Any) -> whale.sinks.SinkResult:
    was_there = token in self.outputs[self.key]
    result = Memory.publish(self, token, staged)
    return whale.sinks.SinkResult(rows=0) if was_there else result


def changed_by_check(self: Any) -> None:
    self.outputs[self.key]["check"] = [{"n": 1}]


BROKEN_SINKS: dict[str, tuple[Callable[[], Any], str]] = {
    "views": (with_writer(write=keeps_views, stage=stages_views), "write() must copy the rows"),
    "early": (with_writer(write=shows_at_once), "before publish() its output has not the rows"),
    "staged": (with_writer(stage=shows_when_staged), "after stage(), before publish()"),
    "twice": (with_sink(publish=appends), "after a second publish() of the same"),
    "half": (with_sink(publish=loses_an_instance), "after publish() its output has not"),
    "discards": (with_sink(discard=discards_all), "after publish(), abort() and discard()"),
    "aborted": (with_writer(abort=shows_what_is_aborted), "abort() and discard() its output"),
    "abort": (with_writer(abort=aborts_once), "abort() raised AttributeError"),
    "number": (with_writer(stage=loses_its_number), "stage() of instance 1 must return Staged(1"),
    "part": (with_writer(publish_part=keeps_part), "publish_part() without rows must return None"),
    "open": (with_writer(write=leaves_open), "test_sink_contract_checks.py open: abort() must"),
    "attempts": (
        with_writer(write=shares_rows),
        "after an attempt was published beside a lost one",
    ),
    "again": (with_sink(publish=counts_once), "publish() of the same returned 0 rows, then 7"),
    "check": (with_sink(check=changed_by_check), "after check() and prepare()"),
    "lines": (with_sink(describe=lambda self: ""), "describe() must return one line"),
    "result": (with_sink(publish=lambda *_: 3), "publish() must return a SinkResult, not 3"),
    "writer": (with_sink(open=lambda *_: 3), "open() must return a SinkWriter, not 3"),
    "no sink": (dict, "does not derive from whale.sinks.Sink"),
}


@pytest.mark.parametrize("name", list(BROKEN_SINKS))
def test_a_sinks_broken_promise_is_named(name: str) -> None:
    make, message = BROKEN_SINKS[name]
    with pytest.raises(ContractError) as error:
        check_sink(make, Memory.rows)
    for file in LeavesOpen.kept:
        file.close()
    assert message in str(error.value)


def test_the_sink_that_is_broken_in_so_many_ways_is_right() -> None:
    check_sink(Memory, Memory.rows)
    check_sink(Memory, Memory.rows, batch=whale.Batch.from_pydict({"n": list(range(4))}))


def test_a_sink_may_serve_bounded_jobs_alone() -> None:
    part = {"publish_part": whale.sinks.SinkWriter.publish_part}
    alone = with_writer(**part)
    with pytest.raises(ContractError, match=r"publishes_parts = True, but Broken has no publish_p"):
        check_sink(alone, Memory.rows)
    alone.publishes_parts = False
    check_sink(alone, Memory.rows)
