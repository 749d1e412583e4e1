"""Epochs over real rings: whatever the order of turns, a snapshot is a cut through all streams.

The rings are so small that writers wait for room, also with markers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import whale_ray as whale
from tests.transport.unix_transport import unix_transport
from tests.whale_ray.worker.ring_jobs import (
    Counting,
    EpochJob,
    Keep,
    KeepTogether,
    Numbered,
    Record,
)
from whale_ray.configs.errors import ProtocolError
from whale_ray.state.epochs.epoch_commands import EpochDurable, EpochForgotten, InjectMarker
from whale_ray.tasks.stage_epochs import StageEpochs
from whale_ray.transports import Transport
from whale_ray.worker import transport_operators
from whale_ray.worker.transport_operators import ReceiverOperator

SMALL = {
    "transport.ring_bytes": 65_536,
    "transport.ring_bytes_min": 65_536,
    "transport.mms_bytes": 4_096,
    "transport.wtl_ms": 0.0,
}
GROUPINGS = {
    "shuffle": lambda rows: rows.shuffle(),
    "key": lambda rows: rows.key_by("n"),
    "all": lambda rows: rows.broadcast(),
    "local": lambda rows: rows.local_or_shuffle(),
    "global": lambda rows: rows.global_(),
}


def topology_of(
    record: Record,
    shape: str,
    groupings: list[str],
    parallelism: int,
    rows: int,
    row_bytes: int,
    transport: Transport | None = None,
) -> tuple[whale.Topology, dict[str, int]]:
    """Return a topology of one to three stages behind one source or a union of two."""
    topology = whale.Topology("epochs", transport=transport)
    sources = {"a": rows} if shape != "union" else {"a": rows, "b": 2 * rows // 3}
    streams = [
        topology.source(Numbered(name, count, row_bytes), id=name, parallelism=parallelism)
        for name, count in sources.items()
    ]
    stream = streams[0] if len(streams) == 1 else streams[0].union(streams[1])
    for place, grouping in enumerate(groupings):
        kind = KeepTogether if grouping == "all" and place % 2 else Keep
        grouped = GROUPINGS[grouping](stream)
        one = {} if grouping == "global" else {"parallelism": parallelism}
        stream = grouped.process(lambda kind=kind: kind(record.seen), id=f"keep-{place}", **one)
    stream.sink(Counting(), id="out")
    return topology, sources


class Controller:
    """Tells workers of epochs, each of them at its own time."""

    def __init__(self, job: EpochJob, chance: Random) -> None:
        self.job, self.chance = job, chance
        self.epoch = 0
        self.untold: list[tuple[int, Any]] = []

    def speak(self) -> None:
        if self.untold:
            worker, command = self.untold.pop(self.chance.randrange(len(self.untold)))
            self.job.tell(worker, command)
            return
        kind = self.chance.random()
        if kind < 0.2 and self.epoch:
            command: Any = EpochForgotten(self.epoch)
            self._give_up()
        elif kind < 0.4 and self.epoch:
            command = EpochDurable(self.epoch)
        else:
            self._give_up()
            self.epoch += 1
            command = InjectMarker(self.epoch)
        self.untold = [(worker, command) for worker in range(len(self.job.workers))]

    def _give_up(self) -> None:
        """Let the present epoch not count, unless it does already; workers may never hear of it."""
        if not self.job.is_whole(self.epoch):
            self.job.forgotten.add(self.epoch)


def play(job: EpochJob, chance: Random, steps: int) -> None:
    """Give random parts of random workers their turns, while epochs begin; then come to the end."""
    controller = Controller(job, chance)
    switch = job.plan.rings and any(ring.per_instance for ring in job.plan.rings)
    for _ in range(steps):
        if job.done:
            return
        draw = chance.random()
        if draw < 0.05:
            controller.speak()
        elif draw < 0.07 and switch:
            chosen = chance.choice(["instance-oriented", "worker-oriented"])
            chance.choice(job.workers).set_addressing(chosen)
        elif draw < 0.15:
            job.turn(chance)
        else:
            job.now_ns += 100_000
            for step in chance.choices(job.steps(), k=20):
                step(job.now_ns)
    while controller.untold:
        controller.speak()
    if not job.is_whole(controller.epoch):
        job.forgotten.add(controller.epoch)
    job.tell_all(EpochForgotten(controller.epoch))
    job.run_to_the_end()


@pytest.mark.long
@settings(max_examples=25)
@given(
    seed=st.integers(0, 2**32),
    workers=st.integers(1, 3),
    shape=st.sampled_from(["one", "union"]),
    groupings=st.lists(st.sampled_from(sorted(GROUPINGS)), min_size=1, max_size=3),
    parallelism=st.integers(1, 4),
    row_bytes=st.sampled_from([10, 3_000]),
    addressing=st.sampled_from(["worker-oriented", "instance-oriented"]),
)
def test_a_snapshot_is_a_cut_through_all_streams(
    seed: int,
    workers: int,
    shape: str,
    groupings: list[str],
    parallelism: int,
    row_bytes: int,
    addressing: str,
) -> None:
    chance, record = Random(seed), Record()
    topology, sources = topology_of(record, shape, groupings, parallelism, 60, row_bytes)
    chosen = {**SMALL, "runtime.addressing": addressing}
    with EpochJob(topology, workers, record, chosen) as job:
        play(job, chance, 300)
        job.check_cuts(sources)
        job.check_cut(-1, sources)
        assert record.last.keys() == job.participants


def test_epochs_come_through_under_back_pressure() -> None:
    """The control of the test above: epochs become whole, and writers do wait for room."""
    record = Record()
    topology, sources = topology_of(record, "one", ["key", "shuffle"], 4, 400, 3_000)
    with EpochJob(topology, 2, record, SMALL) as job:
        chance, waited = Random(1), 0
        for epoch in range(1, 9):
            job.tell_all(InjectMarker(epoch))
            while sum((kind, n) == ("taken", epoch) for kind, _, n in record.told) < 6:
                job.turn(chance)
                waited += sum(
                    writer.blocked
                    for worker in job.workers
                    for task in worker._tasks
                    if task.paused
                    for writer in task.writers
                )
            job.tell_all(EpochDurable(epoch))
        assert job.check_cuts(sources) == 8
        assert waited > 0
        job.run_to_the_end()


def begin_epochs(job: EpochJob, count: int) -> None:
    """Begin an epoch every ten turns, whether the one before is whole or not."""
    for epoch in range(1, count):
        job.tell_all(InjectMarker(epoch))
        for _ in range(10):
            job.turn(Random(epoch))


def test_without_the_sibling_rule_rows_come_before_a_siblings_marker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def let_go_at_once(epochs: StageEpochs) -> bool:
        epochs._passing = False
        epochs._go_on()
        return True

    monkeypatch.setattr(StageEpochs, "_release_rings", let_go_at_once)
    record = Record()
    topology, _ = topology_of(record, "one", ["key", "shuffle"], 4, 400, 3_000)
    with (
        EpochJob(topology, 2, record, SMALL) as job,
        pytest.raises(ProtocolError, match="while producers that share the ring had not written"),
    ):
        begin_epochs(job, 50)


@pytest.mark.long
@settings(max_examples=15)
@given(
    seed=st.integers(0, 2**32),
    workers=st.integers(2, 3),
    shape=st.sampled_from(["one", "union"]),
    groupings=st.lists(st.sampled_from(sorted(GROUPINGS)), min_size=1, max_size=2),
    parallelism=st.integers(1, 4),
    row_bytes=st.sampled_from([10, 1_000]),
    kept_bytes=st.sampled_from([2_000, 1 << 20]),
)
def test_a_snapshot_is_a_cut_through_streams_that_share_a_receiver(
    seed: int,
    workers: int,
    shape: str,
    groupings: list[str],
    parallelism: int,
    row_bytes: int,
    kept_bytes: int,
) -> None:
    chance, record = Random(seed), Record()
    topology, sources = topology_of(
        record, shape, groupings, parallelism, 40, row_bytes, unix_transport(512, 4)
    )
    with keeping_at_most(kept_bytes), EpochJob(topology, workers, record, SMALL) as job:
        play(job, chance, 200)
        job.check_cuts(sources)
        job.check_cut(-1, sources)
        assert record.last.keys() == job.participants
        assert not any(receiver._kept_bytes for receiver in receivers_of(job))


@contextmanager
def keeping_at_most(nbytes: int) -> Iterator[None]:
    """Let receivers keep fewer bytes behind a marker than they may."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transport_operators, "KEPT_BYTES_MAX", nbytes)
        yield


def receivers_of(job: EpochJob) -> list[ReceiverOperator]:
    return [
        reader
        for worker in job.workers
        for reader in worker._readers
        if isinstance(reader, ReceiverOperator)
    ]


@pytest.mark.parametrize("kept_bytes", [1 << 20, 2_000])
def test_frames_behind_a_marker_are_kept_or_the_epoch_is_given_up(kept_bytes: int) -> None:
    """Two workers send to a third: one has written its marker, and the other one has not."""
    record = Record()
    topology, sources = topology_of(record, "one", ["global"], 2, 300, 100, unix_transport(512, 4))
    with keeping_at_most(kept_bytes), EpochJob(topology, 2, record, SMALL) as job:
        (receiver,) = receivers_of(job)
        target = job.plan.stage_of("keep-0").workers[0]
        job.tell(1 - target, InjectMarker(1))
        most = 0
        for _ in range(100):
            job.turn()
            most = max(most, receiver._kept_bytes)
        failed = [told for told in record.told if told[0].startswith("failed")]
        assert most > 0
        if kept_bytes == 2_000:
            ((reason, participant, epoch),) = failed
            assert "had to keep more than 2,000 bytes behind the marker of one sender" in reason
            assert (participant, epoch) == ((job.plan.stage_of("keep-0").id, target), 1)
        else:
            assert not failed
            job.tell(target, InjectMarker(1))
        job.run_to_the_end()
        assert job.check_cuts(sources) == (kept_bytes != 2_000)
        job.check_cut(-1, sources)
