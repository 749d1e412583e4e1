"""A model of the brokers' rules for transactions, as far as exactly-once depends on them.

What Kafka's protocol says (KIP-98, KIP-360, KIP-447), without what was added since to make it
stricter (KIP-890), so that nothing here holds by grace of a new broker:

- A transactional id has a producer id and an epoch; each initialisation raises the epoch, ends the
  transaction that is under way (aborted by markers of the new epoch), and answers only after that.
- Requests of an older epoch are refused, by the coordinator, and by a partition once it has seen
  the newer one: in rows, or in a marker. A partition does not ask the coordinator.
- A commit is decided at the coordinator, then carried to each partition by a marker, later, one by
  one. A group's offsets are a partition, too; what a marker decides takes effect still later. A
  reader of offsets is told to wait while any of them is undecided, if it asks for stable ones.
- Partitions leave out a batch whose number they have seen from its producer and epoch.
- A transaction that is open for too long is aborted by the coordinator, which raises the epoch.
- Readers of committed rows see those before their producer's commit marker.

Requests and answers get lost, and requests arrive late, even after their sender has died.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from whale_ray.operators.kafka.commit_protocol import (
    CommitTransaction,
    Initialise,
    ReadRecord,
    Record,
    Step,
    Write,
)

PARTITIONS = ("rows-0", "rows-1")


class RefusedError(Exception):
    """The brokers have refused a request for good."""


class BusyError(Exception):
    """The brokers want the request to be sent again later."""


class LostError(Exception):
    """Nobody knows whether a request was carried out."""


@dataclass
class Coordinated:
    """A transactional id at its coordinator."""

    pid: int
    epoch: int = -1
    state: str = "Empty"
    partitions: set[tuple[str, str]] = field(default_factory=set)


@dataclass
class PartitionLog:
    """A partition: rows and markers as they came, and the newest epoch of each producer."""

    entries: list[tuple[str, int, Any]] = field(default_factory=list)
    seen: dict[int, tuple[int, int]] = field(default_factory=dict)  # pid: epoch, last batch

    def append(self, pid: int, epoch: int, batch: int, rows: Any) -> None:
        newest, last = self.seen.get(pid, (epoch, -1))
        if epoch < newest:
            raise RefusedError("fenced by the partition")
        if epoch > newest:
            last = -1
        if batch <= last:
            return
        if batch != last + 1:
            raise RefusedError("out of order")
        self.seen[pid] = (epoch, batch)
        self.entries.append(("rows", pid, rows))

    def mark(self, pid: int, epoch: int, *, commit: bool) -> None:
        newest, last = self.seen.get(pid, (epoch, -1))
        if epoch >= newest:
            self.seen[pid] = (epoch, last if epoch == newest else -1)
            self.entries.append(("commit" if commit else "abort", pid, None))

    def committed(self) -> list[Any]:
        """Return what readers of committed rows see, once all is decided."""
        seen: list[Any] = []
        undecided: dict[int, list[Any]] = {}
        for kind, pid, rows in self.entries:
            if kind == "rows":
                undecided.setdefault(pid, []).append(rows)
            else:
                mine = undecided.pop(pid, [])
                seen += mine if kind == "commit" else []
        return seen

    def undecided(self) -> bool:
        open_ = set()
        for kind, pid, _ in self.entries:
            (open_.add if kind == "rows" else open_.discard)(pid)
        return bool(open_)


class Brokers:
    """All brokers; markers and late requests wait until the test lets them on."""

    def __init__(self) -> None:
        self.ids: dict[str, Coordinated] = {}
        self.logs: dict[tuple[str, str], PartitionLog] = {}
        self.markers: list[tuple[str, tuple[str, str], int, int, bool]] = []
        self.late: list[Callable[[], Any]] = []
        self.applied: dict[str, int] = {}  # entries of a group's log that have taken effect

    def log(self, place: tuple[str, str]) -> PartitionLog:
        return self.logs.setdefault(place, PartitionLog())

    def initialise(self, name: str) -> tuple[int, int]:
        one = self.ids.setdefault(name, Coordinated(len(self.ids)))
        if one.state.startswith("Prepare"):
            raise BusyError
        if one.state == "Ongoing":
            one.epoch += 1
            self._prepare(name, one, commit=False)
            raise BusyError
        one.epoch += 1
        one.state = "Empty"
        return one.pid, one.epoch

    def add(self, name: str, pid: int, epoch: int, place: tuple[str, str]) -> None:
        one = self._checked(name, pid, epoch)
        if one.state.startswith("Prepare"):
            raise BusyError
        one.state = "Ongoing"
        one.partitions.add(place)

    def end(self, name: str, pid: int, epoch: int) -> None:
        one = self._checked(name, pid, epoch)
        if one.state == "PrepareCommit":
            raise BusyError
        if one.state == "CompleteCommit":
            return
        if one.state != "Ongoing":
            raise RefusedError(f"no transaction to commit: {one.state}")
        self._prepare(name, one, commit=True)

    def time_out(self, name: str) -> None:
        one = self.ids[name]
        if one.state == "Ongoing":
            one.epoch += 1
            self._prepare(name, one, commit=False)

    def carry_marker(self, number: int) -> None:
        name, place, pid, epoch, commit = self.markers.pop(number)
        self.log(place).mark(pid, epoch, commit=commit)
        one = self.ids[name]
        if not any(marker[0] == name for marker in self.markers):
            one.state = "CompleteCommit" if commit else "CompleteAbort"
            one.partitions.clear()

    def apply_offsets(self, group: str) -> None:
        self.applied[group] = len(self.log(("offsets", group)).entries)

    def offset(self, group: str, *, stable: bool) -> int | None:
        log = self.log(("offsets", group))
        applied = self.applied.get(group, 0)
        if stable and (log.undecided() or applied < len(log.entries)):
            raise BusyError
        seen = PartitionLog(log.entries[:applied]).committed()
        return seen[-1] if seen else None

    def rows(self) -> list[Any]:
        """All rows that readers of committed rows see."""
        logs = [log for (kind, _), log in self.logs.items() if kind == "rows"]
        return [row for log in logs for batch in log.committed() for row in batch]

    def _checked(self, name: str, pid: int, epoch: int) -> Coordinated:
        one = self.ids.get(name)
        if one is None or (pid, epoch) != (one.pid, one.epoch):
            raise RefusedError("fenced by the coordinator")
        return one

    def _prepare(self, name: str, one: Coordinated, *, commit: bool) -> None:
        one.state = "PrepareCommit" if commit else "PrepareAbort"
        self.markers += [(name, place, one.pid, one.epoch, commit) for place in one.partitions]


Talk = Generator[None, None, Any]
"""A client that gives way to others before each request and each answer; its answer at the end."""


class ModelPort:
    """A producer and a consumer that carry out steps by requests, each tried once.

    `faults` is the share of requests of which something goes wrong.
    """

    def __init__(
        self, brokers: Brokers, random: Random, name: str, faults: float, *, stable: bool = True
    ) -> None:
        self._brokers, self._random, self._name = brokers, random, name
        self._faults, self._stable = faults, stable
        self._pid, self._epoch = -1, -1
        self._batches: dict[tuple[str, str], int] = {}

    def carry_out(self, step: Step) -> Talk:
        brokers, name = self._brokers, self._name
        match step:
            case Initialise():
                self._pid, self._epoch = yield from self._ask(lambda: brokers.initialise(name))
                self._batches.clear()
            case ReadRecord():
                return (yield from self._ask(lambda: brokers.offset(name, stable=self._stable)))
            case Write(rows):
                for number, partition in enumerate(PARTITIONS):
                    share = [row for row in rows if row[-1] % len(PARTITIONS) == number]
                    if share:
                        yield from self._append(("rows", partition), share)
            case Record(epoch):
                yield from self._append(("offsets", name), epoch)
            case CommitTransaction():
                pid, own = self._pid, self._epoch
                yield from self._ask(lambda: brokers.end(name, pid, own))
        return None

    def _append(self, place: tuple[str, str], rows: Any) -> Talk:
        brokers, name, pid, epoch = self._brokers, self._name, self._pid, self._epoch
        yield from self._ask(lambda: brokers.add(name, pid, epoch, place))
        batch = self._batches.get(place, -1) + 1
        self._batches[place] = batch
        yield from self._ask(lambda: brokers.log(place).append(pid, epoch, batch, rows))

    def _ask(self, request: Callable[[], Any]) -> Talk:
        while True:
            yield
            fate = self._random.random() / self._faults if self._faults else 1.0
            if fate < 1 / 3:
                raise LostError("the request was lost")
            if fate < 2 / 3:
                self._brokers.late.append(request)
                raise LostError("the request is late")
            try:
                answer = request()
            except BusyError:
                continue
            yield
            if fate < 1:
                raise LostError("the answer was lost")
            return answer


def talk(steps: Iterable[Step], port: ModelPort) -> Talk:
    """Let a port carry out the steps of a commit; return what they return."""
    assert isinstance(steps, Generator)
    answer = None
    while True:
        try:
            step = steps.send(answer)
        except StopIteration as end:
            return end.value
        answer = yield from port.carry_out(step)
