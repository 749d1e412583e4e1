"""Epochs of joins with a table that changes: its rings are aligned like those of the stream."""

from __future__ import annotations

from random import Random

import pyarrow as pa
import pytest

import whale_ray as whale
from tests.whale_ray.worker.ring_jobs import Counting, EpochJob, Keep, Numbered, Record
from whale_ray.operators.snapshots import OperatorSnapshot
from whale_ray.state.epochs.epoch_commands import EpochDurable, InjectMarker

INSTANCES = 2
STREAM_ROWS, CHANGES = 80, 50
SMALL = {
    "transport.ring_bytes": 65_536,
    "transport.ring_bytes_min": 65_536,
    "transport.mms_bytes": 4_096,
    "transport.wtl_ms": 0.0,
}


def topology_of(record: Record, parallelism: int, row_bytes: int) -> whale.Topology:
    """Return a stream that is joined with a table; change n of instance p sets its row p to n."""
    topology = whale.Topology("changing")
    numbers = Numbered("a", STREAM_ROWS, row_bytes)
    stream = topology.source(numbers, id="a", parallelism=INSTANCES)
    changes = topology.source(Numbered("c", CHANGES, row_bytes), id="c", parallelism=INSTANCES)
    changes = changes.select(whale.col("p").alias("key"), whale.col("n").alias("change"), "pad")
    table = pa.table(
        {
            "key": pa.array(range(INSTANCES), pa.int64()),
            "change": pa.array([-1] * INSTANCES, pa.int64()),
        }
    )
    spread = stream.shuffle().process(lambda: Keep(record.seen), id="first", parallelism=2)
    known = spread.join_table(
        table, on={"p": "key"}, changes=changes, id="known", parallelism=parallelism
    )
    known.shuffle().process(lambda: Keep(record.seen), id="keep", parallelism=2).sink(
        Counting(), id="out"
    )
    return topology


def newest_changes(snapshot: OperatorSnapshot) -> dict[int, int]:
    """Return the number of the change that made each row of a table, by its key."""
    rows = [row for chunk in snapshot.chunks for row in chunk.rows.to_pylist()]
    found = {row["key"]: row["change"] for row in rows}
    assert len(found) == len(rows) == INSTANCES
    return found


@pytest.mark.parametrize("seed", range(6))
def test_a_tables_snapshot_has_the_changes_that_were_read_by_then(seed: int) -> None:
    chance, record = Random(seed), Record()
    workers, parallelism = 1 + seed % 3, chance.randint(1, 4)
    row_bytes = chance.choice([10, 2_000])
    whole = 0
    with EpochJob(topology_of(record, parallelism, row_bytes), workers, record, SMALL) as job:
        epoch = 0
        while not job.done:
            epoch += 1
            for _ in range(chance.randrange(4)):
                job.turn(chance)
            for worker in chance.sample(range(workers), workers):
                job.tell(worker, InjectMarker(epoch))
                job.turn(chance)
            while not job.is_whole(epoch):
                job.turn(chance)
            whole += check_tables(record, epoch)
            job.tell_all(EpochDurable(epoch))
    assert whole > 1


def check_tables(record: Record, epoch: int) -> int:
    """Check the tables in the snapshots of an epoch, which is complete; return how many it has."""
    cut = record.cuts.get(epoch, {})
    wanted = {p: cut.get(("c", (p,)), CHANGES) - 1 for p in range(INSTANCES)}
    tables = [
        part.operator
        for (_, of_epoch), parts in record.parts.items()
        for part in parts
        if of_epoch == epoch and part.operator.operator_id == "known" and part.operator.chunks
    ]
    for table in tables:
        assert newest_changes(table) == wanted
    joined = sum(cut.get(key, len(rows)) for key, rows in record.seen.items() if key[0] == "keep")
    assert joined == sum(cut.get(("a", (p,)), STREAM_ROWS) for p in range(INSTANCES))
    return len(tables)
