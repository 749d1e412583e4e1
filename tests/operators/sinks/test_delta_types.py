"""The types, values and names of a Delta table's columns."""

from __future__ import annotations

import pickle
from datetime import date
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from whale_ray.configs.errors import OutputError
from whale_ray.operators.sinks.delta_sink import delta
from whale_ray.testing import instance_context, write_all
from whale_ray.transport.wire.batch import Batch

EVERY_TYPE = pa.table(
    {
        "bool": [True, None],
        "u8": pa.array([255, None], pa.uint8()),
        "u64": pa.array([2**64 - 1, None], pa.uint64()),
        "f16": pa.array(np.array([1.5, 2], np.float16)),
        "f64": [float("nan"), None],
        "date": pa.array([date(1500, 1, 1), None], pa.date64()),
        "seconds": pa.array([1, None], pa.timestamp("s", "Europe/Berlin")),
        "plain": pa.array([1000, None], pa.timestamp("ns")),
        "price": pa.array([Decimal("1.25"), None], pa.decimal128(10, 2)),
        "text": ["é", None],
        "bytes": [b"\x00\xff", None],
        "fixed": pa.array([b"ab", None], pa.binary(2)),
    }
)


def test_every_type_comes_back_as_it_was(tmp_path: Path) -> None:
    batch = Batch.from_arrow(EVERY_TYPE.to_batches()[0])
    result = write_all(delta(tmp_path / "t"), [batch])
    back = result.to_arrow()
    assert back.schema == EVERY_TYPE.schema
    assert str(back.to_pylist()) == str(EVERY_TYPE.to_pylist())
    assert [str(one.type.type) for one in DeltaTable(tmp_path / "t").schema().fields] == [
        *("boolean", "short", "decimal(20,0)", "float", "double", "date", "timestamp"),
        *("timestamp_ntz", "decimal(10,2)", "string", "binary", "binary"),
    ]
    assert str(pickle.loads(pickle.dumps(result)).preview(1)) == str(result.preview(1))


FAR_DAYS = Batch.from_arrow(
    pa.record_batch(
        {
            "id": [1, 2],
            "day": pa.array([-719_528, 2_932_897], pa.int32()).view(pa.date32()),
            "time": pa.array([-(10**17), 10**18], pa.timestamp("us")),
        }
    )
)
"""Of the years 0, 10,000 and beyond, which Python's datetime does not have."""


def test_days_and_times_beyond_those_of_python_come_back(tmp_path: Path) -> None:
    write_all(delta(tmp_path / "t"), [FAR_DAYS])
    assert DeltaTable(tmp_path / "t").to_pyarrow_table().equals(pa.table(FAR_DAYS.to_arrow()))


def test_a_table_cannot_be_partitioned_by_days_that_have_no_name(tmp_path: Path) -> None:
    told = "column 'day', by which the Delta table is partitioned, has a day outside the years 1 to"
    with pytest.raises(OutputError, match=told):
        write_all(delta(tmp_path / "t", partition_by="day"), [FAR_DAYS])


def test_names_that_differ_only_in_their_case_are_refused_at_the_first_rows(tmp_path: Path) -> None:
    writer = delta(tmp_path / "t").open(instance_context(), "job-1")
    with pytest.raises(OutputError, match="columns 'id' and 'ID' are the same to Delta Lake"):
        writer.write(Batch.from_pydict({"id": [1], "ID": [2]}))
