"""The collect sink: rows in order, bounded memory."""

from __future__ import annotations

import datetime as dt
import itertools
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest

from whale_ray.configs.errors import InputError, OutputError
from whale_ray.configs.settings import Settings
from whale_ray.operators import sinks
from whale_ray.operators.sinks.base import SinkResult, Staged
from whale_ray.operators.sinks.collect import CollectSink
from whale_ray.testing import check_sink, instance_context, write_all
from whale_ray.transport.wire.batch import Batch


def batch(*rows: int) -> Batch:
    return Batch.from_pydict({"id": np.array(rows, np.int64)})


class Collect(CollectSink):
    """Keeps what it has returned last, as the job does that returns it to its user."""

    returned: ClassVar[dict[int, SinkResult]] = {}
    keys = itertools.count()

    def __init__(self) -> None:
        super().__init__()
        object.__setattr__(self, "key", next(self.keys))

    def publish(self, token: str, staged: Sequence[Staged]) -> SinkResult:
        result = super().publish(token, staged)
        self.returned[self.key] = result
        return result

    @classmethod
    def rows(cls, sink: Collect) -> list[Any]:
        result = cls.returned.get(sink.key)
        return [] if result is None else result.to_arrow().to_pylist()


def test_it_keeps_the_promises_of_sinks_whatever_fails() -> None:
    check_sink(Collect, Collect.rows)


def test_rows_come_in_the_order_of_the_instances() -> None:
    result = write_all(sinks.collect(), [batch(5, 4), batch(3)], [], [batch(1)])
    assert result.rows == 4
    assert result.to_arrow()["id"].to_pylist() == [5, 4, 3, 1]
    assert result.to_pandas()["id"].tolist() == [5, 4, 3, 1]
    assert result.preview(2) == [{"id": 5}, {"id": 4}]
    assert result.path is None


def test_staged_rows_can_be_pickled() -> None:
    sink = sinks.collect()
    writer = pickle.loads(pickle.dumps(sink)).open(instance_context(), "t")
    writer.write(batch(1, 2))
    staged = pickle.loads(pickle.dumps(writer.stage()))
    assert sink.publish("t", [staged]).to_arrow()["id"].to_pylist() == [1, 2]


def test_no_collected_rows_are_an_empty_table() -> None:
    assert write_all(sinks.collect(), []).to_arrow().num_rows == 0
    empty = write_all(sinks.collect(), [batch()], []).to_arrow()
    assert empty.schema.names == ["id"]


REMEDY = (
    "; write it to files with whale.sinks.parquet('out/'), "
    "or raise the setting runtime.collect_bytes_max"
)


def test_memory_is_bounded_per_instance_and_in_all() -> None:
    with pytest.raises(OutputError) as error:
        write_all(sinks.collect(max_bytes=1024), [batch(*range(100)), batch(*range(100))])
    assert str(error.value) == (
        f"sink 'operator': the collected result is larger than 1 KiB{REMEDY}"
    )
    with pytest.raises(OutputError) as error:
        write_all(sinks.collect(max_bytes=1024), [batch(*range(100))], [batch(*range(100))])
    assert str(error.value) == f"the collected result is larger than 1 KiB{REMEDY}"
    with pytest.raises(OutputError) as error:
        sinks.collect(max_bytes=0)
    assert str(error.value) == "collect(max_bytes=0) must be above 0"


def test_the_setting_fills_in_an_open_limit() -> None:
    settings = Settings().with_overrides({"runtime.collect_bytes_max": 1 << 20})
    assert sinks.collect().describe() == "collect"
    assert sinks.collect().configured(settings).describe() == "collect up to 1 MiB"
    assert sinks.collect(5 << 20).configured(settings).describe() == "collect up to 5 MiB"


def test_instances_must_agree_on_the_columns() -> None:
    with pytest.raises(OutputError, match="column 'id' is string instead of int64"):
        write_all(sinks.collect(), [batch(1)], [Batch.from_pydict({"id": ["a"]})])


def test_it_is_for_bounded_jobs(tmp_path: Path) -> None:
    with pytest.raises(OutputError) as error:
        sinks.collect().open(instance_context(), "t").publish_part()
    assert str(error.value) == (
        "CollectWriter: this sink publishes once, at the end of a bounded job; "
        "use a sink of files (parquet, csv, json_lines) for an unbounded one"
    )


def test_dates_that_python_does_not_have_are_text_in_a_preview() -> None:
    days = pa.array([10_000_000, 0, None], pa.date32())
    result = write_all(sinks.collect(), [Batch.from_arrow(pa.table({"day": days}))])
    assert [row["day"] for row in result.preview()] == [
        "date32[day] of 10000000",
        dt.date(1970, 1, 1),
        None,
    ]
    with pytest.raises(InputError, match=r"pandas cannot hold a row \(.*\); take to_arrow\(\)"):
        result.to_pandas()
