"""Row groups of a Parquet file: which columns get a dictionary, and what is read back."""

from __future__ import annotations

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from whale_ray.operators.sinks.row_groups import RowGroupWriter, dictionary_columns

ROWS = 131_072


def written(*groups: pa.Table) -> io.BytesIO:
    stream = io.BytesIO()
    writer = RowGroupWriter(stream, groups[0].schema, "zstd")
    for group in groups:
        writer.write(group)
    footer = writer.close()
    assert footer.num_rows == sum(group.num_rows for group in groups)
    return stream


def with_dictionary(stream: io.BytesIO, group: int = 0) -> set[str]:
    of_group = pq.ParquetFile(stream).metadata.row_group(group)
    columns = [of_group.column(position) for position in range(of_group.num_columns)]
    return {column.path_in_schema for column in columns if column.has_dictionary_page}


def table(rows: int = ROWS) -> pa.Table:
    numbers = np.random.default_rng(7).permutation(rows)
    texts = [f"text {number}" for number in numbers]
    kinds = {
        "number": pa.int64(),
        "double": pa.float64(),
        "half": pa.float16(),
        "instant": pa.timestamp("us", "UTC"),
        "span": pa.duration("ms"),
        "amount": pa.decimal128(30, 2),
    }
    columns = {name: pa.array(numbers).cast(kind) for name, kind in kinds.items()}
    return pa.table(
        {
            **columns,
            "dotted.name": pa.array(texts),
            "bytes": pa.array(texts).cast(pa.binary()),
            "few": pa.array(numbers % 10),
            "few_texts": pa.array([f"text {number % 100}" for number in numbers]),
            "true": pa.array(numbers % 2 == 1),
            "null": pa.nulls(rows),
            "list": pa.array([[number] for number in numbers]),
            "struct": pa.array([{"inner.name": number} for number in numbers]),
            "map": pa.array([[("key", n)] for n in numbers], pa.map_(pa.string(), pa.int64())),
        }
    )


def test_values_that_repeat_get_a_dictionary_and_others_do_not() -> None:
    rows = table()
    stream = written(rows)
    nested = {"list.list.element", "struct.inner.name", "map.key_value.key", "map.key_value.value"}
    # A half has 65,536 values; Parquet has no dictionary of booleans.
    assert with_dictionary(stream) == {"half", "few", "few_texts", "null"} | nested
    assert pq.read_table(stream).equals(rows)


@pytest.mark.parametrize("name", ["number", "double", "dotted.name", "few", "few_texts"])
def test_the_file_is_no_larger_than_with_or_without_all_dictionaries(name: str) -> None:
    rows = table().select([name])
    sizes = []
    for use_dictionary in (True, False):
        stream = io.BytesIO()
        pq.write_table(rows, stream, compression="zstd", use_dictionary=use_dictionary)
        sizes.append(len(stream.getvalue()))
    assert len(written(rows).getvalue()) <= 1.01 * min(sizes)


def test_the_first_row_group_decides() -> None:
    distinct = pa.table({"n": np.arange(ROWS)})
    same = pa.table({"n": np.zeros(ROWS, np.int64)})
    stream = written(same, distinct)
    assert with_dictionary(stream, 0) == {"n"}
    assert pq.read_table(stream).equals(pa.concat_tables([same, distinct]))
    assert with_dictionary(written(distinct, same), 1) == set()


def test_a_few_rows_and_rows_in_many_pieces() -> None:
    assert dictionary_columns(pa.table({"n": np.arange(100)}), ["n"]) is True
    pieces = [pa.table({"n": np.arange(start, start + 10)}) for start in range(0, ROWS, 10)]
    assert dictionary_columns(pa.concat_tables(pieces), ["n"]) == []


def test_a_type_that_parquet_lacks_is_refused_before_any_row() -> None:
    """A part that cannot be staged would be staged again with each checkpoint."""
    schema = pa.schema({"span": pa.month_day_nano_interval()})
    with pytest.raises(pa.ArrowNotImplementedError, match="interval"):
        RowGroupWriter(io.BytesIO(), schema, "zstd")


def test_a_file_without_rows_has_its_columns() -> None:
    stream = io.BytesIO()
    footer = RowGroupWriter(stream, table(1).schema, "zstd").close()
    assert footer.num_rows == 0
    assert pq.read_table(stream).schema.equals(table(1).schema)
