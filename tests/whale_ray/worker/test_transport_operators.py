"""Whole topologies over transports that users plug in, each against a plain Python computation."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import whale_ray as whale
from tests.transport.unix_transport import UnixReceiver, UnixSender, unix_transport
from whale_ray.api.job import Job
from whale_ray.api.submission import submit
from whale_ray.transports import Transport, TransportContext

WORDS = ["the", "whale", "swims", "and", "the", "ray", "glides", "and", "the", "whale", "dives"]
SMALL = {"runtime.source_batch_rows": 64, "transport.wtl_ms": 0.0}


def over(transport: Transport) -> whale.Topology:
    return whale.Topology("plugged-in", transport=transport)


def run(topology: whale.Topology, workers: int = 4, **settings: Any) -> Job:
    chosen = {**SMALL, **{name.replace("__", "."): value for name, value in settings.items()}}
    return submit(topology, on="processes", workers=workers, settings=chosen).wait(60)


def rows_of(job: Job, sink: str = "out") -> list[dict[str, Any]]:
    return job.results(sink).to_arrow().to_pylist()


class CountWords(whale.Process):
    def open(self, context: Any) -> None:
        self.counts: Counter[str] = Counter()

    def on_batch(self, batch: whale.Batch, out: Any) -> None:
        self.counts.update(batch["word"].to_pylist())

    def close(self, out: Any) -> None:
        out.emit_rows([{"word": word, "count": n} for word, n in self.counts.items()])


class Tag(whale.Process):
    """Every row with the instance that saw it."""

    def open(self, context: Any) -> None:
        self.instance = context.instance

    def on_row(self, row: Any, out: Any) -> None:
        out.emit_row(v=row["v"], instance=self.instance)


class TotalOfTotals(whale.Process):
    def open(self, context: Any) -> None:
        self.total = 0

    def on_batch(self, batch: whale.Batch, out: Any) -> None:
        self.total += int(batch["count"].sum())

    def close(self, out: Any) -> None:
        out.emit_row(total=self.total)


def word_count(topology: whale.Topology, texts: int, sink: Any = None) -> whale.Topology:
    """Count words by key on every worker, then all of them at one: fan-in of all workers."""
    texts_of = [{"text": " ".join(WORDS[: 1 + i % len(WORDS)])} for i in range(texts)]
    source = topology.source(whale.sources.iterable(texts_of), id="texts")
    words = source.shuffle().flat_map(
        lambda row: [{"word": word} for word in row.text.split()], id="split", parallelism=4
    )
    counted = words.key_by("word").process(CountWords, id="count", parallelism=4)
    counted.global_().process(TotalOfTotals, id="total").sink(whale.sinks.collect(), id="out")
    counted.sink(sink or whale.sinks.collect(), id="counts")
    return topology


def counted_words(texts: int) -> dict[str, int]:
    expected: Counter[str] = Counter()
    for i in range(texts):
        expected.update(WORDS[: 1 + i % len(WORDS)])
    return dict(expected)


@pytest.mark.parametrize("hosts", [1, 2], ids=["one-host", "two-hosts"])
def test_words_are_counted_with_fan_in_fragments_and_back_pressure(
    no_leaks: None, hosts: int
) -> None:
    topology = word_count(over(unix_transport(message_bytes=128, queue_length=2)), 3000)
    job = run(topology, runtime__hosts=hosts)
    found = {row["word"]: row["count"] for row in rows_of(job, "counts")}
    assert found == counted_words(3000)
    assert rows_of(job) == [{"total": sum(found.values())}]

    operators = job.metrics().transports
    senders = [operator for operator in operators if operator.sender is not None]
    receivers = [operator for operator in operators if operator.sender is None]
    plan = Counter(operator.edge for operator in senders)
    assert plan == {0: 3, 1: 12, 2: 3}, "a sender for every pair of workers"
    assert Counter(operator.edge for operator in receivers) == {0: 3, 1: 4, 2: 1}
    assert {operator.transport for operator in operators} == {"unix-sockets"}
    assert all(operator.busy_ns > 0 for operator in operators)
    for receiver in receivers:
        into = [
            sender
            for sender in senders
            if (sender.edge, sender.receiver) == (receiver.edge, receiver.receiver)
        ]
        assert receiver.messages == sum(sender.messages for sender in into)
        assert receiver.counters.frames == sum(sender.counters.frames for sender in into)
    assert sum(sender.counters.back_pressured for sender in senders) > 0
    for sender in senders:
        assert sender.messages > sender.counters.frames, "one to end, others to complete frames"
        assert sender.own["bytes"] == sender.counters.payload_bytes + 32 * sender.messages
    assert max(sender.messages / sender.counters.frames for sender in senders) > 3


@pytest.mark.parametrize(
    ("group", "instances"),
    [
        (lambda stream: stream.broadcast(), lambda v: range(5)),
        (lambda stream: stream.global_(), lambda v: [0]),
        (lambda stream: stream.direct("v"), lambda v: [v]),
        (lambda stream: stream.partition_by(lambda batch, n: 4 - batch["v"]), lambda v: [4 - v]),
        (lambda stream: stream.local_or_shuffle(), None),
    ],
    ids=["all", "global", "direct", "custom", "local-or-shuffle"],
)
def test_every_grouping(no_leaks: None, group: Callable[[Any], Any], instances: Any) -> None:
    """Three producers; a row for all is sent once to every process, and reaches all instances."""
    rows = [{"v": i % 5} for i in range(300)]
    topology = over(unix_transport(message_bytes=512, queue_length=4))
    source = topology.source(whale.sources.iterable(rows), id="rows")
    spread = source.shuffle().map(lambda row: {"v": row.v}, id="again", parallelism=3)
    parallelism = 1 if instances and instances(1) == [0] else 5
    out = group(spread).process(Tag, id="tag", parallelism=parallelism)
    out.sink(whale.sinks.collect(), id="out")
    found = Counter(tuple(row.values()) for row in rows_of(run(topology)))
    if instances is None:
        assert Counter(v for v, _ in found.elements()) == Counter(row["v"] for row in rows)
    else:
        assert found == Counter((row["v"], i) for row in rows for i in instances(row["v"]))


class LatestBefore(whale.CoProcess):
    """The value of the last left row that is not later than a right one."""

    def open(self, context: Any) -> None:
        self.latest: dict[int, int] = defaultdict(int)

    def on_left_row(self, row: Any, out: Any) -> None:
        self.latest[row["k"]] = row["v"]

    def on_right_row(self, row: Any, out: Any) -> None:
        out.emit_row(q=row["q"], v=self.latest[row["k"]])


def without_free_memory(plan: str) -> str:
    """Leave out what depends on the moment at which a plan was explained."""
    return re.sub(r"budget of .* free in memory", "", plan)


def test_two_streams_meet_in_event_time_order_one_over_a_transport(no_leaks: None) -> None:
    topology = whale.Topology("as-of")
    values = [{"k": i % 3, "v": i, "t": i * 10} for i in range(600)]
    asked = [{"k": i % 3, "q": i, "t": i * 7 + 5} for i in range(600)]
    time = {"event_time": "t", "event_time_unit": "ms"}
    left = topology.source(whale.sources.iterable(values), id="values", **time)
    right = topology.source(whale.sources.iterable(asked), id="asked", **time)
    keyed = left.via(unix_transport(message_bytes=256, queue_length=4)).key_by("k")
    met = keyed.connect(right.key_by("k")).process(LatestBefore, id="meet", parallelism=3)
    met.sink(whale.sinks.collect(), id="out")
    plan = str(topology.explain(workers=4))
    other_manner = str(topology.explain(settings={"runtime.workers": 4}))
    assert without_free_memory(other_manner) == without_free_memory(plan)
    assert "Transport operators: 1 sender" not in plan and "unix-sockets" in plan
    expected = {}
    for question in asked:
        before = [
            row["v"] for row in values if row["t"] <= question["t"] and row["k"] == question["k"]
        ]
        expected[question["q"]] = before[-1] if before else 0
    assert {row["q"]: row["v"] for row in rows_of(run(topology))} == expected


class KilledOnce(CountWords):
    """Kills its worker at the first attempt, in the middle of the input."""

    def open(self, context: Any) -> None:
        super().open(context)
        self.victim = context.attempt == 0 and context.instance == 2

    def on_batch(self, batch: whale.Batch, out: Any) -> None:
        super().on_batch(batch, out)
        if self.victim and self.counts.total() > 500:
            os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_worker_restarts_the_job_over_new_pairs(no_leaks: None, tmp_path: Path) -> None:
    topology = over(unix_transport(message_bytes=256, queue_length=4))
    rows = [{"word": word} for word in WORDS * 400]
    source = topology.source(whale.sources.iterable(rows), id="words")
    spread = source.shuffle().map(lambda row: {"word": row.word}, id="again", parallelism=3)
    spread.key_by("word").process(KilledOnce, id="count", parallelism=4).sink(
        whale.sinks.parquet(tmp_path / "out"), id="out"
    )
    job = run(topology)
    assert job.metrics().attempt == 1
    found = {row["word"]: row["count"] for row in rows_of(job)}
    assert found == {word: 400 * WORDS.count(word) for word in WORDS}


# --- what goes wrong --------------------------------------------------------------------------


class Lossy(UnixSender):
    """Loses everything from its third message on, and says nothing."""

    def open(self, context: TransportContext, address: bytes) -> None:
        super().open(context, address)
        self.put_so_far = 0

    def put(self, message: memoryview) -> None:
        self.put_so_far += 1
        if self.put_so_far < 3:
            super().put(message)


class Broken(UnixSender):
    def put(self, message: memoryview) -> None:
        raise ZeroDivisionError("no route")


class Dying(UnixSender):
    def put(self, message: memoryview) -> None:
        raise ConnectionResetError("the network is down")


class Liar(UnixReceiver):
    def get(self) -> bytes | None:
        message = super().get()
        return message and message[:40]


class Homeless(UnixReceiver):
    def open(self, context: TransportContext) -> Any:
        super().open(context)
        return self._door


EDGE = "'rows' → 'count'"


@pytest.mark.parametrize(
    ("operators", "settings", "told"),
    [
        (
            (Lossy, UnixReceiver),
            {"transport__silence_timeout_ms": 100, "transport__heartbeat_interval_ms": 50},
            f"transport 'faulty', receiver of {EDGE} in worker 1 lost messages: worker 0 sent N and"
            " has ended, 2 came, and none for 0.1 s",
        ),
        (
            (Broken, UnixReceiver),
            {},
            "ZeroDivisionError: no route\n"
            f"in transport 'faulty', sender of {EDGE} from worker 0 to worker 1",
        ),
        (
            (Dying, UnixReceiver),
            {"runtime__max_restarts": 1},
            f"worker 0 lost attempt 1: transport 'faulty', sender of {EDGE} from worker 0 to"
            " worker 1: its other side is gone: ConnectionResetError('the network is down'); the"
            " job is not restarted: it was restarted 1 times already (runtime.max_restarts)",
        ),
        (
            (UnixSender, Liar),
            {},
            f"transport 'faulty', receiver of {EDGE} in worker 1 got 40 bytes of a message from"
            " worker 0 of N",
        ),
        (
            (UnixSender, Homeless),
            {},
            f"transport 'faulty', receiver of {EDGE} in worker 1 has an address that cannot travel:"
            " <socket>: cannot pickle 'socket' object",
        ),
    ],
    ids=["loses", "raises", "dies", "lies", "homeless"],
)
def test_a_faulty_transport_ends_the_job_and_is_named(
    no_leaks: None, operators: Any, settings: dict[str, Any], told: str
) -> None:
    topology = over(Transport("faulty", *operators, message_bytes=256, queue_length=4))
    source = topology.source(whale.sources.iterable([{"word": word} for word in WORDS]), id="rows")
    counted = source.global_().process(CountWords, id="count")
    counted.sink(whale.sinks.collect(), id="out")
    with pytest.raises((whale.errors.TransportError, whale.errors.WorkerDiedError)) as caught:
        run(topology, workers=2, **settings, runtime__source_workers=1)
    text = re.sub(r"<socket\.socket.*?>", "<socket>", str(caught.value))
    text = re.sub(r"(sent|of) \d+( and|$)", r"\1 N\2", text)
    assert text.endswith(told)


def test_workers_that_lose_each_others_rows_do_not_wait_for_ever(no_leaks: None) -> None:
    """Each sends and receives, so that none comes to its end."""
    topology = over(Transport("faulty", Lossy, UnixReceiver, message_bytes=256, queue_length=4))
    source = topology.source(
        whale.sources.iterable([{"word": word} for word in WORDS * 20]), id="rows", parallelism=2
    )
    counted = source.key_by("word").process(CountWords, id="count", parallelism=2)
    counted.sink(whale.sinks.collect(), id="out")
    with pytest.raises(whale.errors.TransportError, match="sent .* and has ended, 2 came, and"):
        run(topology, 2, transport__silence_timeout_ms=100, transport__heartbeat_interval_ms=50)


def test_a_transport_that_cannot_travel_is_named_before_anything_starts(no_leaks: None) -> None:
    lock = threading.Lock()
    topology = over(Transport("locked", lambda: UnixSender(lock), UnixReceiver))
    with pytest.raises(whale.errors.UsageError, match="transport 'locked' cannot be sent to a"):
        run(word_count(topology, 1))


def test_instances_are_not_addressed_one_by_one_over_a_transport() -> None:
    topology = over(unix_transport())
    source = topology.source(whale.sources.iterable([{"v": 1}]), id="rows")
    tagged = source.broadcast().process(Tag, id="tag")
    tagged.sink(whale.sinks.collect(), id="out")
    with pytest.raises(whale.errors.SettingsError) as caught:
        run(topology, runtime__addressing="instance-oriented")
    assert str(caught.value) == (
        "runtime.addressing is 'instance-oriented', but transport 'unix-sockets' sends 'rows' →"
        " 'tag' once per process: leave the setting at 'worker-oriented', or omit the transport"
    )
