"""Cluster monitoring against SQL, which makes the samples of the same files by itself."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import whale_ray as whale
from whale_ray.applications.cluster_monitoring.generator import cpu_of_tasks, job_events
from whale_ray.applications.cluster_monitoring.inputs import replay_of
from whale_ray.applications.cluster_monitoring.replay import Replay, write_samples
from whale_ray.applications.cluster_monitoring.schemas import CPU, JOB_EVENTS, SAMPLES
from whale_ray.applications.cluster_monitoring.settings import ClusterSettings
from whale_ray.applications.cluster_monitoring.topology import build
from whale_ray.cli.main import main
from whale_ray.configs.errors import InputError

FEW = ClusterSettings(jobs=150, seed=5)
COLUMNS = ["window_start", "window_end", "job_id", "mean_cpu_pct"]


@cache
def inputs() -> tuple[pa.Table, pa.Table]:
    return job_events(FEW), cpu_of_tasks(FEW)


def means(events: object, cpu: object, seconds: int, most_jobs: int) -> list[tuple]:
    """Return the application's answer, by DuckDB: of tables, or of files' paths."""
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        for name, given in (("events", events), ("cpu", cpu)):
            relation = connection.read_parquet(given) if isinstance(given, str) else given
            connection.register(name, relation)
        width_us = seconds * 1_000_000
        return connection.sql(f"""
            WITH jobs AS (
                SELECT job_id, min(time_us) FILTER (event = 'SCHEDULE') AS start_us,
                    min(time_us) FILTER (event NOT IN ('SUBMIT', 'SCHEDULE', 'UPDATE_RUNNING'))
                        AS end_us
                FROM events GROUP BY job_id HAVING start_us IS NOT NULL),
            ranked AS (
                SELECT *, row_number() OVER (ORDER BY start_us, job_id) - 1 AS rank FROM jobs
                QUALIFY rank < {most_jobs}),
            day AS (
                SELECT * FROM cpu
                WHERE sample_time::DATE = (SELECT min(sample_time)::DATE FROM cpu)),
            tasks AS (
                SELECT cpu_pct, dense_rank() OVER (ORDER BY task_id) - 1 AS task,
                    row_number() OVER (PARTITION BY task_id ORDER BY sample_time) - 1 AS place
                FROM day),
            samples AS (
                SELECT start_us + 2000000 * place AS time_us, job_id, cpu_pct
                FROM ranked JOIN tasks ON task = rank % (SELECT count(DISTINCT task_id) FROM day)
                WHERE end_us IS NULL OR time_us < end_us)
            SELECT make_timestamp(time_us // {width_us} * {width_us}) AS start,
                start + INTERVAL '{seconds} seconds', job_id, avg(cpu_pct)
            FROM samples GROUP BY ALL ORDER BY ALL""").fetchall()


def ordered(found: pa.Table) -> list[tuple]:
    assert found.column_names == COLUMNS
    return sorted(tuple(row.values()) for row in found.to_pylist())


def monitored(samples: whale.sources.Source, window: str, parallelism: int) -> list[tuple]:
    topology = build(samples, whale.sinks.collect(), window=window, parallelism=parallelism)
    return ordered(whale.run(topology).results("out").to_arrow())


@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize(("window", "seconds"), [("2 seconds", 2), ("1 minute", 60)])
def test_means_of_generated_jobs_are_those_of_sql(parallelism, window, seconds):
    events, cpu = inputs()
    samples = pa.concat_tables(Replay(events, cpu).tables())
    found = monitored(whale.sources.arrow(samples), window, parallelism)
    assert found == means(events, cpu, seconds, FEW.jobs)
    assert len(found) > 500


@pytest.mark.long
def test_means_of_real_jobs_are_those_of_sql(data_dir: Path, tmp_path: Path):
    samples = write_samples(tmp_path, replay_of(data_dir, 400))
    (events,) = data_dir.glob("cluster_job_events_*.parquet")
    (cpu,) = data_dir.glob("cluster_cpu_*.parquet")
    expected = means(str(events), str(cpu), 30, 400)
    for parallelism in (1, 3):
        found = monitored(whale.sources.parquet(str(samples)), "30 seconds", parallelism)
        assert found == expected
    assert len({row[2] for row in expected}) == 400


def test_samples_are_in_the_order_of_time_then_of_rank():
    """Also of jobs that begin together, before the trace does, or long after all others."""
    starts_us = [-3_000_001, -3_000_001, 0, 64_000_000, 10**12, 5]
    ids = [9, 4, 7, 1, 2, 3]
    ends_us = [1, 0, 10**13, 64_000_001, 10**12 + 1, 5]
    events = pa.table(
        {
            "time_us": ends_us + starts_us,
            "job_id": ids + ids,
            "event": ["KILL"] * len(ids) + ["SCHEDULE"] * len(ids),
        },
        schema=JOB_EVENTS,
    )
    cpu = pa.table(
        {
            "sample_time": pa.array([2, 1, 7, 3], pa.timestamp("us")),
            "task_id": ["a", "a", "b", "a"],
            "cpu_pct": [20.0, 10.0, 70.0, 30.0],
        },
        schema=CPU,
    )
    samples = pa.concat_tables(Replay(events, cpu).tables())
    assert samples.schema == SAMPLES
    in_us = samples.set_column(0, "time_us", samples["event_time"].cast(pa.int64()))
    found = [tuple(row.values()) for row in in_us.to_pylist()]
    assert found == [
        (-3_000_001, 4, 10.0),
        (-3_000_001, 9, 70.0),
        (-1_000_001, 4, 20.0),
        (0, 7, 10.0),
        (2_000_000, 7, 20.0),
        (4_000_000, 7, 30.0),
        (64_000_000, 1, 10.0),
        (10**12, 2, 70.0),
    ]


def test_the_generator_has_the_shape_of_the_traces():
    settings = ClusterSettings(jobs=20_000)
    events, cpu = job_events(settings), cpu_of_tasks(settings)
    starts_us, ends_us = (
        events.filter(pa.compute.equal(events["event"], name))["time_us"].to_numpy()
        for name in ("SCHEDULE", "FINISH")
    )
    assert len(starts_us) == 20_000 and len(ends_us) / 20_000 == pytest.approx(0.574, abs=0.02)
    assert np.diff(starts_us).mean() / 1e6 == pytest.approx(3.73, rel=0.05)
    samples = sum(table.num_rows for table in Replay(events, cpu).tables())
    assert samples / 20_000 == pytest.approx(125.3, rel=0.1)
    assert (cpu.num_rows, len(cpu["task_id"].unique())) == (1_052 * 288, 1_052)
    cpu_pct = cpu["cpu_pct"].to_numpy()
    assert (cpu_pct == np.floor(cpu_pct)).all() and cpu_pct.min() >= 0 and cpu_pct.max() <= 99
    assert np.quantile(cpu_pct, [0.25, 0.5, 0.75]) == pytest.approx([2, 5, 14], abs=2)
    assert cpu_pct.mean() == pytest.approx(11.1, rel=0.3)


def test_the_same_seed_gives_the_same_bytes(tmp_path):
    one, other = (write_samples(tmp_path / name, Replay(*inputs())).read_bytes() for name in "ab")
    assert one == other
    different = ClusterSettings(jobs=FEW.jobs, seed=6)
    assert job_events(different) != inputs()[0] and cpu_of_tasks(different) != inputs()[1]


def test_the_command_takes_generated_jobs_traces_and_samples(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for folder in ("traces", "samples"):
        (tmp_path / folder).mkdir()
    pq.write_table(inputs()[0], "traces/job_events.parquet")
    pq.write_table(inputs()[1], "traces/cpu.parquet")
    write_samples("samples", Replay(*inputs()))
    samples = sum(table.num_rows for table in Replay(*inputs()).tables())
    expected = means(*inputs(), 10, FEW.jobs)
    for source in ("--jobs 150 --seed 5", "--data traces", "--data samples"):
        words = ["run", "cluster-monitoring", "--on", "inline", "--json", "--window", "10 seconds"]
        assert main([*words, *source.split()]) == 0
        told = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert told["rows_out"] == len(expected)
        assert told["rows_in"] == {"samples": samples}
        assert told["settings"]["data"] == (source.split()[1] if "data" in source else None)
        assert ordered(pq.read_table("out/cluster-monitoring")) == expected
    assert main([*words, "--data", "traces", "--first-jobs", "7"]) == 0
    found = ordered(pq.read_table("out/cluster-monitoring"))
    assert found == means(*inputs(), 10, 7)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: (folder / "cpu.parquet").unlink(), "but no cpu.parquet: put it there"),
        (
            lambda folder: pq.write_table(
                inputs()[0].rename_columns(["t", "job_id", "event"]), folder / "job_events.parquet"
            ),
            "job_events.parquet': needs the columns time_us (int64), job_id (int64), event",
        ),
        (
            lambda folder: pq.write_table(
                inputs()[1].set_column(2, "cpu_pct", inputs()[1]["task_id"]), folder / "cpu.parquet"
            ),
            "cpu.parquet': needs the columns sample_time (timestamp[us]), task_id (string)",
        ),
        (
            lambda folder: pq.write_table(
                inputs()[0].set_column(1, "job_id", pa.nulls(inputs()[0].num_rows, pa.int64())),
                folder / "job_events.parquet",
            ),
            "job_events.parquet': column 'job_id' holds nulls: leave these rows out",
        ),
        (
            lambda folder: pq.write_table(CPU.empty_table(), folder / "cpu.parquet"),
            "cpu.parquet' has no rows: put some there",
        ),
        (
            lambda folder: [
                pq.write_table(CPU.empty_table(), folder / f"cluster_{name}.parquet")
                for name in ("cpu_a", "job_events_a")
            ],
            "has several inputs (job_events.parquet and cpu.parquet, cluster_job_events_a.parquet"
            " and cluster_cpu_a.parquet): leave one of them there",
        ),
    ],
)
def test_input_that_cannot_be_used_is_named(spoil, message, tmp_path):
    pq.write_table(inputs()[0], tmp_path / "job_events.parquet")
    pq.write_table(inputs()[1], tmp_path / "cpu.parquet")
    spoil(tmp_path)
    with pytest.raises(InputError) as refused:
        replay_of(tmp_path)
    assert message in str(refused.value) and "\n" not in str(refused.value)


def test_a_number_of_jobs_beside_samples_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_samples(tmp_path, Replay(*inputs()))
    assert (
        main(["run", "cluster-monitoring", "--on", "inline", "--data", ".", "--first-jobs", "3"])
        == 2
    )
    assert capsys.readouterr().err == (
        "whale-ray: --first-jobs means nothing where --data . has samples; leave it out\n"
    )
