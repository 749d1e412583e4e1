"""The coordinator of epochs: begins them, and decides when one counts.

A pure state machine: `handle` takes an event and the time, and returns the actions to carry out.

::

    IDLE ──► BEGUN ──────────► WRITING ──► DURABLE ──► IDLE
             snapshots of      manifest    commit of
             participants                  all sinks
               │                  │
               └── FORGOTTEN ◄────┘  failed, or too late

One epoch is under way at a time. It counts from the moment its manifest is in the store: a restart
resumes from the newest manifest. Sinks commit only then, since what they have committed cannot be
taken back, and commit again after every restart, since it is unknown whether they had. An epoch
that fails or takes too long is forgotten; its number is never used again, so that a late marker,
snapshot or manifest of it cannot be taken for another's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from enum import Enum, auto

from ...configs.errors import ProtocolError
from .commit_retries import CommitRetries
from .coordinator_events import (
    Action,
    Aligned,
    BeginEpoch,
    CommitFailed,
    Committed,
    Event,
    ForgetEpoch,
    GiveUp,
    ManifestFailed,
    ManifestWritten,
    Part,
    Participant,
    ParticipantEnded,
    ReleaseEpoch,
    SavepointRequested,
    SnapshotFailed,
    SnapshotWritten,
    TimePassed,
    WriteManifest,
)
from .rules import EpochRules

__all__ = ["EpochCoordinator", "EpochPhase"]

_NAMED_MAX = 3


class EpochPhase(Enum):
    """Where the present epoch is; IDLE if there is none."""

    IDLE = auto()
    BEGUN = auto()
    WRITING = auto()
    DURABLE = auto()


class EpochCoordinator:
    """Leads the participants of one attempt through epochs; see the module's diagram.

    Once all participants have ended, a last epoch begins at once.

    Args:
        rules: when epochs begin, and how long they may take.
        participants: all participants of the job.
        last: the newest number that an epoch of this job may have had; 0 for a new job.
        now_ms: the time.
        name: what a participant is called in reasons.
    """

    def __init__(
        self,
        rules: EpochRules,
        participants: Collection[Participant],
        *,
        last: int = 0,
        now_ms: int,
        name: Callable[[Participant], str] = str,
    ) -> None:
        self._rules = rules
        self._name = name
        self.phase = EpochPhase.IDLE
        self.epoch = last
        """The present epoch, or the last one."""
        self.counted = 0
        """The last epoch whose manifest is in the store, 0 if none."""
        self.failures = 0
        """How many epochs were forgotten since the last one that counts."""
        self.over = False
        """Whether the last epoch is committed: all participants have ended or were stopped."""
        self._participants = frozenset(participants)
        self._ended: dict[Participant, ParticipantEnded] = {}
        self._aligned: set[Participant] = set()
        self._parts: dict[Participant, Part] = {}
        self._asked: SavepointRequested | None = None
        self._serves: SavepointRequested | None = None  # what the present epoch was asked for
        self._is_last = False
        self._commit = CommitRetries(rules)
        self._begun_ms: int | None = None
        self._over_ms = now_ms

    def resume(self, epoch: int) -> list[Action]:
        """Begin after an epoch whose manifest is in the store: its sinks commit, maybe again."""
        self.epoch, self.counted = max(epoch, self.epoch), epoch
        self.phase = EpochPhase.DURABLE
        return self._commit.begin(epoch)

    @property
    def serves(self) -> SavepointRequested | None:
        """What the user asked the present epoch for, or the last one; None: it began by itself."""
        return self._serves

    def handle(self, event: Event, now_ms: int) -> list[Action]:
        """Take an event and return what is to be done, in order.

        Raises:
            ProtocolError: a participant of another attempt, or an answer without a request.
        """
        match event:
            case TimePassed():
                return self._tick(now_ms)
            case SavepointRequested():
                self._ask(event)
                return self._tick(now_ms)
            case Aligned(participant, epoch):
                self._check(participant)
                if self._is_begun(epoch):
                    self._aligned.add(participant)
                return []
            case SnapshotWritten(participant, epoch, part):
                self._check(participant)
                if self._is_begun(epoch):
                    self._parts[participant] = part
                return self._write_if_whole()
            case SnapshotFailed(participant, epoch, reason):
                self._check(participant)
                return self._forget(reason, now_ms) if self._is_begun(epoch) else []
            case ParticipantEnded(participant):
                self._check(participant)
                self._ended[participant] = event
                return self._write_if_whole() or self._tick(now_ms)
            case ManifestWritten(epoch):
                self._expect(EpochPhase.WRITING, epoch, self.epoch)
                self.phase, self.failures, self.counted = EpochPhase.DURABLE, 0, epoch
                return self._commit.begin(epoch)
            case ManifestFailed(epoch, reason):
                self._expect(EpochPhase.WRITING, epoch, self.epoch)
                return self._forget(reason, now_ms)
            case Committed(epoch):
                self._expect(EpochPhase.DURABLE, epoch, self._commit.epoch)
                return self._committed(now_ms)
            case CommitFailed(epoch, reason):
                self._expect(EpochPhase.DURABLE, epoch, self._commit.epoch)
                return self._commit.failed(reason, now_ms)

    @property
    def deadline_ms(self) -> int | None:
        """When the next `TimePassed` is due; None if only another event leads on."""
        if self.over or self.phase is EpochPhase.WRITING:
            return None
        if self.phase is EpochPhase.DURABLE:
            return self._commit.due_ms
        if self.phase is EpochPhase.BEGUN and self._begun_ms is not None:
            return self._begun_ms + self._rules.timeout_ms
        return self._begin_due_ms()

    @property
    def missing(self) -> tuple[frozenset[Participant], frozenset[Participant]]:
        """The participants without the present marker, and those without a snapshot yet."""
        if self.phase is not EpochPhase.BEGUN:
            return frozenset(), frozenset()
        unwritten = self._participants - self._parts.keys() - self._ended_before(self.epoch).keys()
        return unwritten - self._aligned, unwritten

    # --- the way of an epoch ----------------------------------------------------------------------

    def _tick(self, now_ms: int) -> list[Action]:
        due_ms = self.deadline_ms
        if due_ms is None or now_ms < due_ms:
            return []
        if self.phase is EpochPhase.IDLE:
            return self._begin(now_ms)
        if self.phase is EpochPhase.DURABLE:
            return self._commit.again()
        return self._forget(self._what_is_late(), now_ms)

    def _begin_due_ms(self) -> int:
        pause_ms = self._over_ms + self._rules.min_pause_ms
        if self._asked is not None or self._all_ended:
            return self._over_ms + self._rules.pause_ms(self.failures)
        begun_ms = self._over_ms if self._begun_ms is None else self._begun_ms
        return max(begun_ms + self._rules.interval_ms, pause_ms)

    def _begin(self, now_ms: int) -> list[Action]:
        self.epoch += 1
        self.phase, self._begun_ms = EpochPhase.BEGUN, now_ms
        self._serves, self._asked = self._asked, None
        self._aligned.clear()
        self._parts.clear()
        stop = self._serves is not None and self._serves.stop
        self._is_last = stop or self._all_ended
        return [BeginEpoch(self.epoch, stop), *self._write_if_whole()]

    def _write_if_whole(self) -> list[Action]:
        if self.phase is not EpochPhase.BEGUN or self.missing[1]:
            return []
        self.phase = EpochPhase.WRITING
        ended = not self._parts
        self._is_last = self._is_last or ended
        parts = self._ended_before(self.epoch) | self._parts
        return [WriteManifest(self.epoch, self.counted, parts, ended)]

    def _forget(self, reason: str, now_ms: int) -> list[Action]:
        self.failures += 1
        self.phase, self._over_ms = EpochPhase.IDLE, now_ms
        forget: list[Action] = [ForgetEpoch(self.epoch, reason)]
        if self._is_last and self.failures >= self._rules.tries_max:
            return [*forget, GiveUp(f"the last epoch, {self.epoch}, has failed: {reason}")]
        if self._serves is not None:
            self._ask(self._serves)
        return forget

    def _what_is_late(self) -> str:
        late, unwritten = self.missing
        what = [
            f"its marker has not come to {self._named(late)}" if late else "",
            f"no snapshot has come from {self._named(unwritten - late)}"
            if unwritten - late
            else "",
        ]
        within = f"within {self._rules.timeout_ms:,} ms (checkpoints.timeout_ms)"
        return f"{', and '.join(filter(None, what))} {within}"

    def _named(self, participants: Collection[Participant]) -> str:
        names = sorted(map(self._name, participants))
        more = len(names) - _NAMED_MAX
        return ", ".join(names[:_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")

    def _committed(self, now_ms: int) -> list[Action]:
        self.phase, self._over_ms = EpochPhase.IDLE, now_ms
        self.over = self._is_last
        return [ReleaseEpoch(self._commit.epoch), *self._tick(now_ms)]

    def _ask(self, asked: SavepointRequested) -> None:
        stop = asked.stop or (self._asked is not None and self._asked.stop)
        self._asked = SavepointRequested(stop)

    # --- checks -----------------------------------------------------------------------------------

    @property
    def _all_ended(self) -> bool:
        return len(self._ended) == len(self._participants)

    def _ended_before(self, epoch: int) -> dict[Participant, Part]:
        """Return the parts of participants that ended before they got an epoch's marker."""
        return {
            participant: end.part for participant, end in self._ended.items() if end.behind < epoch
        }

    def _is_begun(self, epoch: int) -> bool:
        """Whether what a participant tells of an epoch still matters: else it is forgotten."""
        return self.phase is EpochPhase.BEGUN and epoch == self.epoch

    def _check(self, participant: Participant) -> None:
        if participant not in self._participants:
            msg = f"participant {participant!r} takes no part in the epochs of this attempt"
            raise ProtocolError(msg)

    def _expect(self, phase: EpochPhase, epoch: int, expected: int) -> None:
        if self.phase is not phase or epoch != expected:
            msg = (
                f"an answer for epoch {epoch} came while epoch {self.epoch} was"
                f" {self.phase.name.lower()}"
            )
            raise ProtocolError(msg)
