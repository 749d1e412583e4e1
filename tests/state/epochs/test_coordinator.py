"""When epochs begin, are forgotten, are tried again and are over; faults are in the simulation."""

from __future__ import annotations

import pytest

from whale_ray.configs.errors import ProtocolError
from whale_ray.state.epochs.coordinator import EpochCoordinator, EpochPhase
from whale_ray.state.epochs.coordinator_events import (
    Aligned,
    BeginEpoch,
    CommitEpoch,
    CommitFailed,
    Committed,
    ForgetEpoch,
    GiveUp,
    ManifestFailed,
    ManifestWritten,
    ParticipantEnded,
    ReleaseEpoch,
    SavepointRequested,
    SnapshotFailed,
    SnapshotWritten,
    TimePassed,
    WriteManifest,
)
from whale_ray.state.epochs.rules import EpochRules

RULES = EpochRules(interval_ms=100, min_pause_ms=30, timeout_ms=50, retry_ms=4, tries_max=3)


@pytest.fixture
def coordinator():
    return EpochCoordinator(RULES, ("a", "b"), now_ms=0)


def write_snapshots(coordinator, epoch, now_ms):
    assert coordinator.handle(SnapshotWritten("a", epoch, "A"), now_ms) == []
    return coordinator.handle(SnapshotWritten("b", epoch, "B"), now_ms)


def test_an_epoch_goes_from_its_marker_to_its_commit(coordinator):
    assert coordinator.handle(TimePassed(), 99) == []
    assert coordinator.deadline_ms == 100
    assert coordinator.handle(TimePassed(), 100) == [BeginEpoch(1)]
    assert write_snapshots(coordinator, 1, 110) == [WriteManifest(1, 0, {"a": "A", "b": "B"})]
    assert coordinator.deadline_ms is None
    assert coordinator.handle(ManifestWritten(1), 120) == [CommitEpoch(1)]
    assert coordinator.handle(Committed(1), 130) == [ReleaseEpoch(1)]
    assert coordinator.phase is EpochPhase.IDLE
    assert coordinator.deadline_ms == 200


def test_a_pause_lies_between_two_epochs(coordinator):
    coordinator.handle(TimePassed(), 100)
    write_snapshots(coordinator, 1, 149)
    coordinator.handle(ManifestWritten(1), 160)
    coordinator.handle(Committed(1), 190)
    assert coordinator.deadline_ms == 220


def test_an_epoch_that_takes_too_long_is_forgotten_and_says_who_is_missing(coordinator):
    coordinator.handle(TimePassed(), 100)
    coordinator.handle(Aligned("a", 1), 110)
    assert coordinator.missing == ({"b"}, {"a", "b"})
    (forget,) = coordinator.handle(TimePassed(), 150)
    late = "its marker has not come to b, and no snapshot has come from a"
    assert forget == ForgetEpoch(1, f"{late} within 50 ms (checkpoints.timeout_ms)")
    assert write_snapshots(coordinator, 1, 160) == []
    assert coordinator.handle(TimePassed(), 200) == [BeginEpoch(2)]
    assert coordinator.failures == 1


def test_the_next_epoch_commits_what_was_staged_for_a_forgotten_one(coordinator):
    coordinator.handle(TimePassed(), 100)
    assert coordinator.handle(SnapshotFailed("a", 1, "disk full"), 110) == [
        ForgetEpoch(1, "disk full")
    ]
    coordinator.handle(TimePassed(), 200)
    (write,) = write_snapshots(coordinator, 2, 210)
    assert (write.epoch, write.previous) == (2, 0)
    coordinator.handle(ManifestWritten(2), 220)
    coordinator.handle(Committed(2), 230)
    coordinator.handle(TimePassed(), 300)
    (write,) = write_snapshots(coordinator, 3, 310)
    assert (write.epoch, write.previous) == (3, 2)


def test_a_commit_is_tried_again_with_growing_pauses_and_given_up_in_the_end(coordinator):
    coordinator.handle(TimePassed(), 100)
    write_snapshots(coordinator, 1, 110)
    coordinator.handle(ManifestWritten(1), 120)
    assert coordinator.handle(CommitFailed(1, "refused"), 130) == []
    assert coordinator.deadline_ms == 134
    assert coordinator.handle(TimePassed(), 134) == [CommitEpoch(1)]
    assert coordinator.handle(CommitFailed(1, "refused"), 140) == []
    assert coordinator.deadline_ms == 148
    coordinator.handle(TimePassed(), 148)
    assert coordinator.handle(CommitFailed(1, "refused"), 150) == [
        GiveUp("epoch 1 could not be committed: refused")
    ]


def test_a_savepoint_begins_at_once_and_again_if_it_fails(coordinator):
    assert coordinator.handle(SavepointRequested(stop=True), 7) == [BeginEpoch(1, stop=True)]
    coordinator.handle(SnapshotFailed("b", 1, "disk full"), 8)
    assert coordinator.deadline_ms == 12
    assert coordinator.handle(TimePassed(), 12) == [BeginEpoch(2, stop=True)]
    write_snapshots(coordinator, 2, 13)
    coordinator.handle(ManifestWritten(2), 14)
    assert coordinator.handle(Committed(2), 15) == [ReleaseEpoch(2)]
    assert coordinator.over
    assert coordinator.deadline_ms is None


def test_a_savepoint_that_is_asked_for_during_an_epoch_follows_it(coordinator):
    coordinator.handle(TimePassed(), 100)
    assert coordinator.handle(SavepointRequested(), 105) == []
    write_snapshots(coordinator, 1, 110)
    coordinator.handle(ManifestWritten(1), 120)
    assert coordinator.handle(Committed(1), 130) == [ReleaseEpoch(1), BeginEpoch(2)]


def test_a_participant_that_ended_before_the_marker_is_not_waited_for(coordinator):
    coordinator.handle(ParticipantEnded("a", 0, "A's end"), 50)
    coordinator.handle(TimePassed(), 100)
    assert coordinator.handle(SnapshotWritten("b", 1, "B"), 110) == [
        WriteManifest(1, 0, {"a": "A's end", "b": "B"})
    ]


def test_a_participant_that_ended_behind_the_marker_joins_with_its_snapshot(coordinator):
    coordinator.handle(TimePassed(), 100)
    coordinator.handle(SnapshotWritten("b", 1, "B"), 110)
    assert coordinator.handle(ParticipantEnded("a", 1, "A's end"), 120) == []
    assert coordinator.handle(SnapshotWritten("a", 1, "A"), 130) == [
        WriteManifest(1, 0, {"a": "A", "b": "B"})
    ]


def test_the_last_epoch_begins_when_all_participants_have_ended(coordinator):
    coordinator.handle(ParticipantEnded("a", 0, "A"), 50)
    assert coordinator.handle(ParticipantEnded("b", 0, "B"), 60) == [
        BeginEpoch(1),
        WriteManifest(1, 0, {"a": "A", "b": "B"}, ended=True),
    ]
    coordinator.handle(ManifestWritten(1), 70)
    coordinator.handle(Committed(1), 80)
    assert coordinator.over


def test_the_last_epoch_is_tried_a_limited_number_of_times(coordinator):
    coordinator.handle(ParticipantEnded("a", 0, "A"), 50)
    coordinator.handle(ParticipantEnded("b", 0, "B"), 60)
    for epoch in (1, 2):
        assert coordinator.handle(ManifestFailed(epoch, "disk full"), 70) == [
            ForgetEpoch(epoch, "disk full")
        ]
        coordinator.handle(TimePassed(), 1000)
    assert coordinator.handle(ManifestFailed(3, "disk full"), 1000) == [
        ForgetEpoch(3, "disk full"),
        GiveUp("the last epoch, 3, has failed: disk full"),
    ]


def test_a_resumed_job_commits_first(coordinator):
    assert coordinator.resume(7) == [CommitEpoch(7)]
    assert coordinator.handle(TimePassed(), 500) == []
    assert coordinator.handle(Committed(7), 500) == [ReleaseEpoch(7)]
    assert coordinator.deadline_ms == 600
    assert coordinator.handle(TimePassed(), 600) == [BeginEpoch(8)]


@pytest.mark.parametrize(
    "event", [ManifestWritten(1), Committed(1), CommitFailed(1, ""), ManifestFailed(2, "")]
)
def test_an_answer_to_what_was_not_asked_for_is_an_error(coordinator, event):
    coordinator.handle(TimePassed(), 100)
    with pytest.raises(ProtocolError, match="came while epoch 1 was begun"):
        coordinator.handle(event, 110)


def test_a_stranger_among_the_participants_is_an_error(coordinator):
    with pytest.raises(ProtocolError, match="'c' takes no part"):
        coordinator.handle(Aligned("c", 1), 0)
