"""`check_sink` for the transactional Kafka sink, on the model of the brokers' rules.

The sink's own code runs, and fails in every phase: at a cut, while rows are staged, in a commit, in
`recover` and in `publish`; only the client is replaced, by one whose requests and answers get lost,
whose requests come late, and whose markers are carried later.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest

from tests.operators.kafka.broker_model import (
    Brokers,
    BusyError,
    LostError,
    ModelPort,
    RefusedError,
)
from whale_ray import sinks
from whale_ray.operators.kafka import transactions
from whale_ray.operators.kafka.commit_protocol import Record, Step, Write
from whale_ray.operators.sinks import kafka_sink
from whale_ray.testing import ContractError, check_sink
from whale_ray.testing.interruption import InjectedError


class ModelTopic:
    """A topic of a cluster of its own; rows are those of JSON messages."""

    def __init__(self) -> None:
        self.brokers = Brokers()
        self.random = Random("topic")
        self.is_faulty = False
        """Whether requests fail: once a job with checkpoints has committed an epoch."""

    def work(self) -> None:
        """Let the brokers do something of what they have to, and late requests arrive."""
        brokers, random = self.brokers, self.random
        if brokers.markers and random.random() < 0.5:
            brokers.carry_marker(random.randrange(len(brokers.markers)))
        for kind, name in brokers.logs:
            if kind == "offsets" and random.random() < 0.5:
                brokers.apply_offsets(name)
        if brokers.late and random.random() < 0.1:
            self.deliver(brokers.late.pop(random.randrange(len(brokers.late))))

    def deliver(self, request: Callable[[], Any]) -> None:
        try:
            request()
        except (BusyError, RefusedError):
            return  # nobody waits for the answer

    def rows(self) -> list[dict[str, Any]]:
        """Return what readers see once all is decided."""
        while self.brokers.markers:
            self.brokers.carry_marker(0)
        return [json.loads(value) for value, _ in self.brokers.rows()]


class ModelClient:
    """Carries out the steps of one commit; see `transactions._Transactions`."""

    faults = 0.1

    def __init__(self, topic: ModelTopic, name: str) -> None:
        faults = self.faults if topic.is_faulty else 0.0
        self.topic, self.name = topic, name
        self.port = ModelPort(topic.brokers, topic.random, name, faults)

    def __enter__(self) -> ModelClient:
        return self

    def __exit__(self, *_: object) -> None:
        """Leave a transaction open, as one does who dies."""

    def carry_out(self, step: Step) -> int | None:
        if isinstance(step, Write):
            values = [one["value"] for table in step.rows for one in table.messages()]
            step = Write(list(zip(values, itertools.count(), strict=False)))
        talk = self.port.carry_out(step)
        while True:
            try:
                next(talk)
            except StopIteration as end:
                if isinstance(step, Record) and step.epoch and "check-" in self.name:
                    self.topic.is_faulty = True
                return end.value
            except (LostError, RefusedError):
                raise InjectedError from None  # tried again with another client, or by a new job
            self.topic.work()


class NoQuestions:
    """In the place of `Questions`: every topic is there."""

    def __init__(self, cluster: object) -> None:
        pass

    def __enter__(self) -> NoQuestions:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def partitions(self, topics: object, to: str) -> None:
        pass


@pytest.fixture
def topics(monkeypatch: pytest.MonkeyPatch) -> dict[str, ModelTopic]:
    there: dict[str, ModelTopic] = {}

    def client(cluster: object, topic: str, name: str) -> ModelClient:
        return ModelClient(there[topic], name)

    monkeypatch.setattr(transactions, "_Transactions", client)
    monkeypatch.setattr(kafka_sink, "Questions", NoQuestions)
    return there


def check(topics: dict[str, ModelTopic], many: int, rates: tuple[float, ...]) -> None:
    def names() -> Iterator[str]:
        for number in itertools.count():
            topics[f"t{number}"] = ModelTopic()
            yield f"t{number}"

    name = names()
    check_sink(
        lambda: sinks.kafka(next(name), "nowhere:1").for_operator("out"),
        lambda sink: topics[sink.topic].rows(),
        ids=many,
        failure_rates=rates,
    )


@pytest.mark.long
@pytest.mark.parametrize(
    ("many", "rates"),
    [(300, (0.0, 0.3)), pytest.param(100_000, (0.0, 0.1, 0.3), marks=pytest.mark.long)],
)
def test_the_sink_keeps_its_promises(
    topics: dict[str, ModelTopic], many: int, rates: tuple[float, ...]
) -> None:
    check(topics, many, rates)
    assert any(topic.is_faulty for topic in topics.values())


def test_a_commit_that_does_not_look_at_the_record_is_found(
    topics: dict[str, ModelTopic], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = transactions.commit_steps

    def unchecked(epoch: int, rows: Any, if_unknown: Any) -> Iterator[Any]:
        steps = real(epoch, rows, if_unknown)
        answer = None
        while True:
            try:
                step = steps.send(answer)
            except StopIteration as end:
                return end.value
            answer = yield step
            answer = None if answer is None else -1

    monkeypatch.setattr(transactions, "commit_steps", unchecked)
    with pytest.raises(ContractError, match="too many"):
        check(topics, 300, (0.3,))
