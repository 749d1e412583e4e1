"""The read-only count against a count by DuckDB over the same rows."""

from __future__ import annotations

import json
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import whale_ray as whale
from whale_ray.applications.read_only_count.generator import generate, tables
from whale_ray.applications.read_only_count.settings import ReadOnlySettings
from whale_ray.applications.read_only_count.topology import build
from whale_ray.cli.main import main


def counted(records: pa.Table) -> list[tuple[int, int]]:
    """Return the application's answer, by DuckDB."""
    with duckdb.connect() as connection:
        connection.register("records", records)
        return connection.sql("SELECT key, count(*) FROM records GROUP BY key").fetchall()


def ordered(found: pa.Table) -> list[tuple]:
    assert found.column_names == ["key", "occurrences"]
    return sorted(tuple(row.values()) for row in found.to_pylist())


@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize(("keys", "zipf"), [(100_000_000, 0.0), (100_000_000, 1.0), (50, 2.0)])
def test_counts_are_those_of_sql(parallelism: int, keys: int, zipf: float) -> None:
    records = pa.concat_tables(tables(ReadOnlySettings(records=30_000, keys=keys, zipf=zipf)))
    topology = build(whale.sources.arrow(records), whale.sinks.collect(), parallelism=parallelism)
    found = ordered(whale.run(topology).results("out").to_arrow())
    assert found == sorted(counted(records))
    assert sum(occurrences for _, occurrences in found) == 30_000


def test_keys_are_uniform_or_skewed() -> None:
    uniform, skewed = (
        pa.concat_tables(tables(ReadOnlySettings(records=100_000, zipf=zipf)))["key"].to_numpy()
        for zipf in (0.0, 1.5)
    )
    assert np.quantile(uniform, [0.25, 0.5, 0.75]) / 1e8 == pytest.approx(
        [0.25, 0.5, 0.75], abs=0.01
    )
    assert np.mean(skewed == 0) == pytest.approx(1 / 2.612, abs=0.01)  # Riemann's zeta of 1.5


def test_the_command_takes_generated_records_and_a_users_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = ReadOnlySettings(records=20_000, keys=900, zipf=1.0)
    records = pq.read_table(generate("given", settings))
    expected = sorted(counted(records))
    for source in ("--records 20000 --keys 900 --zipf 1.0", "--data given"):
        words = ["run", "read-only-count", "--on", "inline", "--json"]
        assert main([*words, *source.split()]) == 0
        told = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert (told["rows_in"], told["rows_out"]) == ({"records": 20_000}, len(expected))
        assert ordered(pq.read_table("out/read-only-count")) == expected
