"""A worker dies while its state is on the disk: texts, lists and the rows of `top_n` come back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest

import whale_ray as whale
from tests.whale_ray.api.test_checkpoints import OFTEN, checkpoints_of, until
from tests.whale_ray.user_code.gated_numbers import GatedNumbers, kill_worker_once
from whale_ray import state

COUNT, GATE, KEYS = 2_000, 1_000, 400
STATE_BYTES = 1 << 20


class Kept(whale.KeyedProcess):
    """Emits with each number all of its key so far, and the text that was kept with the last."""

    numbers = state.list("int64")
    text = state.value("string")

    def on_row(self, row: Any, out: Any) -> None:
        before = self.text.get("none").partition(" ")[0]
        self.numbers.append(row.number)
        self.text.set(row.text)
        numbers = "|".join(map(str, self.numbers))
        out.emit_row(number=row.number, numbers=numbers, before=before)


def topology(folder: Path) -> whale.Topology:
    killed = folder / "killed"

    def with_text(row: Any) -> dict[str, Any]:
        number = kill_worker_once(row.number, GATE + 500, killed)
        return {"key": number % KEYS, "number": number, "text": f"{number} {'o' * 10_000}"}

    job = whale.Topology("spilled")
    source = job.source(GatedNumbers(COUNT, GATE, folder / "go"), id="numbers", parallelism=2)
    rows = source.map(with_text, id="killer")
    kept = rows.key_by("key").process(Kept, id="kept", parallelism=2)
    kept.sink(whale.sinks.parquet(folder / "kept"), id="kept-out")
    top = rows.group_by("key").top_n(2, by="number", id="top")
    top.sink(whale.sinks.parquet(folder / "top"), id="top-out")
    return job


@pytest.mark.long
def test_state_on_the_disk_is_that_of_the_newest_checkpoint(tmp_path: Path, no_leaks: None) -> None:
    job = whale.submit(
        topology(tmp_path),
        on="processes",
        workers=2,
        checkpoints=tmp_path / "state",
        settings={"runtime.state_bytes": STATE_BYTES},
        **OFTEN,
    )
    until(lambda: rows_into(job, "kept") == GATE, "the first half has not come")
    counted = checkpoints_of(job)
    until(lambda: checkpoints_of(job) > counted + 1, "there is no checkpoint of it")
    spilled = {name: job.metrics().operator(name).spilled_bytes for name in ("kept", "top")}
    (tmp_path / "go").touch()
    job.wait(120)
    assert (job.state, job.outcome().restarts) == ("finished", 1)
    assert spilled["kept"] > STATE_BYTES < spilled["top"]
    assert rows_of(tmp_path / "kept", "number", "numbers", "before") == [
        (
            number,
            "|".join(map(str, range(number % KEYS, number + 1, KEYS))),
            str(number - KEYS) if number >= KEYS else "none",
        )
        for number in range(COUNT)
    ]
    best = duckdb.sql(
        f"""select number % {KEYS} as key, number, number || ' ' || repeat('o', 10000) as text
            from range({COUNT}) as numbers(number)
            qualify row_number() over (partition by key order by number desc) <= 2
            order by all"""
    ).fetchall()
    assert rows_of(tmp_path / "top", "key", "number", "text") == best


def rows_into(job: whale.Job, operator: str) -> int:
    return sum(one.rows_in for one in job.metrics().operators if one.operator_id == operator)


def rows_of(folder: Path, *names: str) -> list[tuple[Any, ...]]:
    table = pq.read_table(folder)
    return sorted(zip(*(table[name].to_pylist() for name in names), strict=True))
