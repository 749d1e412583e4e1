"""Commits of the Kafka sink, against a model of the brokers (`broker_model`), by seeds.

Jobs commit epochs while requests get lost, or arrive late, transactions time out, coordinators die
at every step, or go on beside their successors, and jobs are restored from older epochs. Each row
of an epoch that was committed must be visible once, in every lineage; none may be twice.

What this does not prove, and librdkafka's stand-in of a cluster cannot (it shows rows of aborted
transactions, fences nobody, and keeps no offsets of transactions): that brokers keep to the rules
of the model, and that librdkafka's producer carries out each step as it is meant. That needs a
real cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import pytest

from tests.operators.kafka.broker_model import (
    Brokers,
    BusyError,
    LostError,
    ModelPort,
    RefusedError,
    Talk,
    talk,
)
from whale_ray.operators.kafka.commit_protocol import (
    CommitTransaction,
    Initialise,
    ReadRecord,
    Record,
    RecordGoneError,
    Write,
    commit_steps,
)

EPOCHS = 4
SINKS = ("x", "y")
SEEDS = 300
MUTANT_SEEDS = 1000
TURNS_MAX = 10_000

Row = tuple[str, str, int, int]


def rows_of(lineage: str, sink: str, epoch: int) -> list[Row]:
    return [(lineage, sink, epoch, number) for number in range(epoch % 3 + 1)]


@dataclass(frozen=True)
class Rules:
    """How jobs commit; those that differ from the default are wrong."""

    steps: Callable[..., Generator[Any, Any, bool]] = commit_steps
    name: Callable[[str, str, int], str] = lambda lineage, sink, life: f"{lineage}/{sink}"
    initialises_again: bool = True
    reads_stable: bool = True


@dataclass
class Life:
    """A coordinator, from its start to its death."""

    number: int
    lineage: str
    talk: Talk | None = None
    ends: bool = False


@dataclass
class World:
    """Jobs, one after another, and the brokers.

    `durable` is the newest epoch of each lineage whose manifest is in the store, `done` the commits
    that were told to have succeeded.
    """

    random: Random
    rules: Rules
    brokers: Brokers = field(default_factory=Brokers)
    durable: dict[str, int] = field(default_factory=dict)
    done: set[tuple[str, str, int]] = field(default_factory=set)
    lives: list[Life] = field(default_factory=list)
    faults: float = 0.15
    started: int = 0

    def start(self, lineage: str, restored: tuple[str, int] | None = None) -> None:
        """Start a coordinator, which may not know of those before it."""
        self.started += 1
        life = Life(self.started, lineage)
        life.talk = self._lead(life, restored)
        for other in self.lives:
            other.ends = True  # its claim is gone: it only finishes the commit that it is at
        self.lives.append(life)

    def _lead(self, life: Life, restored: tuple[str, int] | None) -> Talk:
        if restored is not None:
            yield from self._commit_all(life, *restored)
        lineage = life.lineage
        for sink in SINKS:
            yield from self._commit(life, lineage, sink, 0, "write")
        if self.durable.get(lineage):
            yield from self._commit_all(life, lineage, self.durable[lineage])
        while self.durable.get(lineage, 0) < EPOCHS and not life.ends:
            self.durable[lineage] = self.durable.get(lineage, 0) + 1
            yield from self._commit_all(life, lineage, self.durable[lineage])

    def _commit_all(self, life: Life, lineage: str, epoch: int) -> Talk:
        for sink in SINKS:
            if life.ends:
                return
            if (yield from self._commit(life, lineage, sink, epoch, "fail")):
                self.done.add((lineage, sink, epoch))

    def _commit(self, life: Life, lineage: str, sink: str, epoch: int, if_unknown: str) -> Talk:
        rules = self.rules
        name = rules.name(lineage, sink, life.number)
        port, again = None, False
        rows = rows_of(lineage, sink, epoch) if epoch else []
        while True:
            if port is None or rules.initialises_again or not again:
                port = ModelPort(
                    self.brokers, self.random, name, self.faults, stable=rules.reads_stable
                )
            steps = rules.steps(epoch, rows, if_unknown)
            try:
                yield from talk(_without_initialise(steps) if again else steps, port)
            except (LostError, RefusedError) as error:
                again = not rules.initialises_again and isinstance(error, LostError)
                yield
                if life.ends:
                    return False
            else:
                return True

    # --- what happens --------------------------------------------------------------------------

    def turn(self) -> None:
        """Let one thing happen."""
        brokers, random = self.brokers, self.random
        what = random.random()
        if what < 0.7 and self.lives:
            self._go_on(random.choice(self.lives))
        elif what < 0.82 and brokers.markers:
            brokers.carry_marker(random.randrange(len(brokers.markers)))
        elif what < 0.9 and brokers.logs:
            groups = [name for kind, name in brokers.logs if kind == "offsets"]
            if groups:
                brokers.apply_offsets(random.choice(groups))
        elif what < 0.95 and brokers.late:
            self._deliver(brokers.late.pop(random.randrange(len(brokers.late))))
        elif what < 0.96 and brokers.ids:
            brokers.time_out(random.choice(list(brokers.ids)))

    def _go_on(self, life: Life) -> None:
        assert life.talk is not None
        try:
            for _ in range(self.random.choice((1, 1, 3, 9))):  # the others are slow meanwhile
                next(life.talk)
        except StopIteration:
            self.lives.remove(life)

    def _deliver(self, request: Callable[[], Any]) -> None:
        try:
            request()
        except (BusyError, RefusedError):
            return  # nobody waits for the answer

    def settle(self) -> None:
        """Let everything that is under way come to its end."""
        while self.brokers.late or self.brokers.markers or self.brokers.ids:
            for request in self.brokers.late:
                self._deliver(request)
            self.brokers.late.clear()
            for name in self.brokers.ids:
                self.brokers.time_out(name)
            if not self.brokers.markers:
                return
            while self.brokers.markers:
                self.brokers.carry_marker(0)


def _without_initialise(steps: Generator[Any, Any, bool]) -> Generator[Any, Any, bool]:
    """Skip the first step of a commit that is tried again."""
    step = next(steps)
    assert isinstance(step, Initialise)
    step = steps.send(None)
    while True:
        answer = yield step
        try:
            step = steps.send(answer)
        except StopIteration as end:
            return end.value


def simulate(seed: int, rules: Rules) -> str:
    """Run jobs; return what is wrong with the topic in the end, "" if nothing is."""
    random = Random(seed)
    world = World(random, rules, faults=random.choice((0.0, 0.05, 0.2)))
    lineages = ["a"]
    world.start("a")
    disturbances = random.randrange(8)
    for _ in range(TURNS_MAX):
        if not world.lives:
            break
        world.turn()
        if disturbances and random.random() < 0.03:
            disturbances -= 1
            _disturb(world, lineages)
    else:
        return "it never ends"
    world.settle()
    return _judge(world)


def _disturb(world: World, lineages: list[str]) -> None:
    """Let a coordinator die, or seem to: a successor starts, or another job is restored."""
    random = world.random
    if random.random() < 0.5:
        world.lives.clear()
    present = lineages[-1]
    durable = world.durable.get(present, 0)
    if durable and random.random() < 0.3:
        epoch = random.randint(1, durable)
        lineages.append(chr(ord(present) + 1))
        world.start(lineages[-1], (present, epoch))
    elif len(world.lives) < 3:
        world.start(present)


def _judge(world: World) -> str:
    rows = world.brokers.rows()
    twice = {row for row in rows if rows.count(row) > 1}
    if twice:
        return f"visible twice: {sorted(twice)}"
    wanted = {row for commit in world.done for row in rows_of(*commit)}
    lost = wanted - set(rows)
    return f"lost: {sorted(lost)}" if lost else ""


@pytest.mark.parametrize("part", range(4))
def test_each_row_is_visible_once(part: int) -> None:
    wrong = {
        seed: told
        for seed in range(part * SEEDS // 4, (part + 1) * SEEDS // 4)
        if (told := simulate(seed, Rules()))
    }
    assert not wrong


def _unchecked(epoch: int, rows: Any, if_unknown: Any) -> Generator[Any, Any, bool]:
    yield Initialise()
    yield Write(rows)
    yield Record(epoch)
    yield CommitTransaction()
    return True


def _read_first(epoch: int, rows: Any, if_unknown: Any) -> Generator[Any, Any, bool]:
    recorded = yield ReadRecord()
    yield Initialise()
    if recorded is not None and recorded >= epoch:
        return False
    yield Write(rows)
    yield Record(epoch)
    yield CommitTransaction()
    return True


def _record_apart(epoch: int, rows: Any, if_unknown: Any) -> Generator[Any, Any, bool]:
    yield Initialise()
    recorded = yield ReadRecord()
    if recorded is not None and recorded >= epoch:
        return False
    if rows:
        yield Write(rows)
        yield CommitTransaction()
    yield Record(epoch)
    yield CommitTransaction()
    return True


RIGHT = Rules()
MUTANTS = {
    "not initialised anew after an error that leaves all open": replace(
        RIGHT, initialises_again=False
    ),
    "commit not checked": replace(RIGHT, steps=_unchecked),
    "checked before others are fenced": replace(RIGHT, steps=_read_first),
    "record not in the transaction": replace(RIGHT, steps=_record_apart),
    "record read before it is stable": replace(RIGHT, reads_stable=False),
    "an id for each coordinator, one record": replace(
        RIGHT, name=lambda lineage, sink, life: f"{lineage}/{sink}/{life}"
    ),
    "the same id for two sinks": replace(RIGHT, name=lambda lineage, sink, life: lineage),
    "the same id for two jobs": replace(RIGHT, name=lambda lineage, sink, life: sink),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_what_breaks_the_protocol_is_found(name: str) -> None:
    rules = MUTANTS[name]
    assert any(_fails(seed, rules) for seed in range(MUTANT_SEEDS))


def _fails(seed: int, rules: Rules) -> bool:
    try:
        return simulate(seed, rules).startswith(("visible twice", "lost"))
    except RecordGoneError:
        return False  # an id of its own has no record: that is told, not a wrong result


def test_a_record_that_is_gone_is_told_or_decided_by_the_user() -> None:
    def told(if_unknown: Any) -> list[Any]:
        steps = commit_steps(3, ["row"], if_unknown)
        seen = [next(steps), steps.send(None)]
        try:
            seen.append(steps.send(None))
        except RecordGoneError:
            seen.append("gone")
        return seen

    assert told("fail") == [Initialise(), ReadRecord(), "gone"]
    assert told("write") == [Initialise(), ReadRecord(), Write(["row"])]
    assert told("skip") == [Initialise(), ReadRecord(), Write(())]
