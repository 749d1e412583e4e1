"""What a Delta table demands of its writers: this sink keeps to it, or refuses the table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from whale_ray.configs.errors import OutputError
from whale_ray.operators.sinks.delta_sink import delta
from whale_ray.testing import write_all
from whale_ray.transport.wire.batch import Batch

ROWS = Batch.from_arrow(pa.record_batch({"id": pa.array([9, None], pa.int64())}))


def create(
    path: Path,
    *,
    writer: int = 2,
    nullable: bool = True,
    of_column: dict[str, str] | None = None,
    of_table: dict[str, str] | None = None,
    features: list[str] | None = None,
) -> None:
    """Write the log of an empty table with a column `id`, as another system would."""
    field = {"name": "id", "type": "long", "nullable": nullable, "metadata": of_column or {}}
    protocol: dict[str, Any] = {"minReaderVersion": 1, "minWriterVersion": writer}
    if features is not None:
        protocol["writerFeatures"] = features
    metadata = {
        "id": "00000000-0000-0000-0000-000000000001",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": [field]}),
        "partitionColumns": [],
        "configuration": of_table or {},
        "createdTime": 0,
    }
    log = path / "_delta_log"
    log.mkdir(parents=True)
    actions = [{"protocol": protocol}, {"metaData": metadata}]
    (log / f"{0:020}.json").write_text("\n".join(map(json.dumps, actions)))


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no null": (
        {"nullable": False},
        "column 'id' of the Delta table takes no null, and the rows have one there; leave such ",
    ),
    "a constraint": (
        {"writer": 3, "of_table": {"delta.constraints.few": "id < 5"}},
        "has the constraint 'few', to which this sink does not keep: take that from the table",
    ),
    "an invariant": (
        {"of_column": {"delta.invariants": '{"expression":{"expression":"id < 5"}}'}},
        "has delta.invariants of column 'id', to which this sink does not keep",
    ),
    "a generated column": (
        {"writer": 4, "of_column": {"delta.generationExpression": "1"}},
        "has delta.generationExpression of column 'id', to which this sink does not keep",
    ),
    "columns with other names in the files": (
        {"writer": 5, "of_table": {"delta.columnMapping.mode": "name"}},
        "has column mapping, to which this sink does not keep",
    ),
    "what deltalake does not know": (
        {"writer": 7, "features": ["news"]},
        "cannot be read or written: Unsupported table features required",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_table_with_demands_is_refused_in_one_line(tmp_path: Path, case: str) -> None:
    demands, told = REFUSED[case]
    create(tmp_path, **demands)
    with pytest.raises(OutputError) as error:
        write_all(delta(tmp_path), [ROWS])
    assert told in str(error.value)
    assert len(str(error.value).splitlines()) == 1
    assert DeltaTable(str(tmp_path)).version() == 0


def test_rows_of_an_append_only_table_are_added_and_not_replaced(tmp_path: Path) -> None:
    create(tmp_path, of_table={"delta.appendOnly": "true"})
    write_all(delta(tmp_path), [ROWS])
    with pytest.raises(OutputError, match=r"is append-only \(delta.appendOnly\).*use mode='append"):
        delta(tmp_path, mode="overwrite").prepare("job-2", bounded=True)


def test_a_column_without_null_takes_other_values(tmp_path: Path) -> None:
    create(tmp_path, nullable=False)
    write_all(delta(tmp_path), [Batch.from_pydict({"id": [9]})])
    assert DeltaTable(str(tmp_path)).to_pyarrow_table().to_pydict() == {"id": [9]}
