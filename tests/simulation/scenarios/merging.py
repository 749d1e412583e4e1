"""Late merge: producers aggregate, windows merge what leaves them; all are killed and go on.

The partial aggregates, and the windows that merge their deltas, are the objects of a worker. Two
producers send rows out of order, within what their watermarks promise; what leaves them waits for a
while on its way, in order. Groups are held as long as no watermark closes their window, no epoch
empties them and no time limit ends. A kill discards what came since the last epoch; other objects,
at another parallelism, go on from there, and the producers send again what they had sent since.
The results up to the epochs that count must be those of all rows, each window once.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Iterator
from typing import TypeAlias

import whale_ray as whale
from tests.operators.windows.driving import batch_of, bounds
from tests.operators.windows.model import Event, windows_of
from tests.simulation.scenarios.workload import US
from tests.simulation.seeds import Scenario
from tests.simulation.simulator import Simulator
from tests.whale_ray.tasks.fleets import SOURCES, Fleet, Reached, Rows, sent
from whale_ray.operators.snapshots import OperatorSnapshot
from whale_ray.operators.windows.aggregate_windows import AggregateWindows
from whale_ray.operators.windows.aggregation import Aggregation
from whale_ray.operators.windows.partial_aggregation import PartialAggregation
from whale_ray.operators.windows.specifications import TimeWindow
from whale_ray.state.watermarks import WATERMARK_END
from whale_ray.tasks.partial_node import PartialNode
from whale_ray.testing import instance_context
from whale_ray.transport.clock import VirtualClock
from whale_ray.transport.wire.batch import Batch

F = whale.functions
KEYS = 3
_SPAN_US = 200
"""Rows have event times in so many microseconds."""

Result: TypeAlias = tuple[int, int, int]
"""Window start and end (ns since 1970), and the key."""
Sending: TypeAlias = tuple[list[Event], int | None]
"""Rows of a producer, and the watermark behind them; None: none follows."""


class OnTheWay:
    """The edge of one producer: what leaves it, in order, until it is delivered."""

    def __init__(self, source: int) -> None:
        self._source = source
        self.waiting: deque[Rows | Reached] = deque()

    def emit(self, batch: Batch) -> None:
        self.waiting.append(Rows(0, self._source, batch))

    def advance(self, watermark_ns: int) -> None:
        self.waiting.append(Reached(0, self._source, watermark_ns))

    def set_idle(self, idle: bool) -> None:
        """Do nothing: producers of this scenario are never idle."""

    def end(self) -> None:
        self.advance(WATERMARK_END)


class Producer:
    """Rows of one source, and the partial aggregate behind it."""

    def __init__(
        self,
        source: int,
        asked: Aggregation,
        sendings: list[Sending],
        done: int,
        *,
        keeps_open: bool,
    ) -> None:
        self.edge = OnTheWay(source)
        context = instance_context(operator_id="partial", clock=VirtualClock())
        payload = PartialAggregation(asked, False, "sums", keeps_open)
        self.node = PartialNode(context, 0, payload, self.edge)
        self._sendings = sendings
        self.done = done
        promised = [reached for _, reached in sendings[:done] if reached is not None]
        if promised and not self.ended:
            self.node.advance(promised[-1])
        if self.ended:
            self.edge.end()

    @property
    def ended(self) -> bool:
        return self.done == len(self._sendings)

    def send(self) -> None:
        """Hand the next rows, and the watermark behind them, to the aggregate."""
        events, reached_ns = self._sendings[self.done]
        self.node.emit(batch_of(events))
        if reached_ns is not None:
            self.node.advance(reached_ns)
        self.done += 1
        if self.ended:
            self.node.end()


class Play:
    """All objects over all their attempts; `seen` counts what happened."""

    def __init__(self, simulation: Simulator) -> None:
        self._simulation = simulation
        self._chance = chance = random.Random(f"{simulation.seed}/merging")
        slide = chance.randint(5, 40)
        size = slide * chance.choice((1, 1, 2, 3))
        self._window = TimeWindow("time", size * US, slide * US, chance.randrange(slide) * US)
        sums = (F.count().alias("rows"), F.sum("number").alias("sum"))
        self._asked = Aggregation(("key",), self._window, sums)
        self._events = [
            Event(US * chance.randrange(_SPAN_US), chance.randrange(KEYS), number, None, None)
            for number in range(chance.choice((8, 24, 60)))
        ]
        self._sendings = [list(self._of_source(source)) for source in range(SOURCES)]
        self._trouble = chance.choice((0.0, 0.02, 0.1))
        self._keeps_open = chance.random() < 0.5
        self._done = [0] * SOURCES
        self._snapshots: tuple[OperatorSnapshot, ...] = ()
        self._results: dict[Result, tuple[int, int]] = {}
        self.seen: Counter[str] = Counter()
        self._begin()

    def run(self) -> None:
        """Let the producers send everything, again where objects were killed; check what came."""
        while not all(one.ended and not one.edge.waiting for one in self._producers):
            self._simulation.clock.now_ns += US
            if self._chance.random() < self._trouble:
                self._kill()
                continue
            self._turn(self._chance.choice(self._producers))
            if self._chance.random() < 0.05:
                self._take_epoch()
        self._count()
        assert self._results == self._expected()

    def _begin(self) -> None:
        restored = {"op": self._snapshots} if self._snapshots else None
        parallelism = self._chance.choice((1, 2, 3))
        self._fleet = Fleet(lambda: AggregateWindows(self._asked), parallelism, restored=restored)
        self._producers = [
            Producer(source, self._asked, self._sendings[source], done, keeps_open=self._keeps_open)
            for source, done in enumerate(self._done)
        ]

    def _turn(self, producer: Producer) -> None:
        """Send, deliver what waits, or reach the limit for which groups are held."""
        what = self._chance.random()
        if what < 0.5 and not producer.ended:
            producer.send()
        elif what < 0.9 and producer.edge.waiting:
            self._fleet.take([producer.edge.waiting.popleft()])
        elif not producer.ended:
            producer.node.pass_on_waiting()

    def _kill(self) -> None:
        """Go on from the last epoch."""
        self.seen["killed"] += 1
        self.seen["restored"] += bool(self._snapshots)
        self._fleet.close()
        self._begin()

    def _take_epoch(self) -> None:
        """Empty the partial aggregates, deliver what is in front of the markers, and keep state."""
        for producer in self._producers:
            producer.node.empty_for_marker()
            self._fleet.take(list(producer.edge.waiting))
            producer.edge.waiting.clear()
        self.seen["epochs"] += 1
        self._done = [producer.done for producer in self._producers]
        self._snapshots = tuple(sent(one) for one in self._fleet.snapshot(self.seen["epochs"]))
        self._count()

    def _count(self) -> None:
        """Let all results since the last epoch count."""
        for outputs in self._fleet.sunk:
            for sunk in outputs:
                for row in sunk.rows:
                    assert sunk.output != "late", f"a row in time came late: {row}"
                    result = (*bounds(row), row["key"])
                    assert result not in self._results, f"a window fired twice: {row}"
                    self._results[result] = (row["rows"], row["sum"])
                sunk.rows.clear()

    # --- what is sent, and what must come of it ---------------------------------------------------

    def _of_source(self, source: int) -> Iterator[Sending]:
        """Yield every second row, out of order, with the watermarks that they allow."""
        chance = self._chance
        slow = 1 + _SPAN_US / 4 * chance.random()
        rows = sorted(
            self._events[source::SOURCES], key=lambda row: row.time_ns + slow * US * chance.random()
        )
        while rows:
            count = chance.randint(1, 5)
            sending, rows = rows[:count], rows[count:]
            yield sending, min(row.time_ns for row in rows) - 1 if rows else None

    def _expected(self) -> dict[Result, tuple[int, int]]:
        window = self._window
        found: dict[Result, tuple[int, int]] = {}
        for event in self._events:
            for span in windows_of(event.time_ns, window.size_ns, window.slide_ns, window.start_ns):
                rows, total = found.get((*span, event.key), (0, 0))
                found[*span, event.key] = (rows + 1, total + event.number)
        return found


def play(simulation: Simulator) -> Play:
    """Play one seed; return what happened."""
    played = Play(simulation)
    played.run()
    return played


SCENARIO = Scenario("merging", play)
