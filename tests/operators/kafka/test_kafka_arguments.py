"""What the Kafka source takes, and how it shares out partitions; no cluster is asked."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from whale_ray import sinks, sources
from whale_ray.configs.errors import InputError, UsageError
from whale_ray.operators.kafka.partitions import Partition, Places, checked_place, owned


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"topics": []}, "must be one name"),
        ({"topics": ["a", "a"]}, "several different ones"),
        ({"bootstrap_servers": ""}, "no bootstrap_servers"),
        ({"value": "jsn"}, "did you mean 'json'"),
        ({"schema": None}, "needs schema="),
        ({"value": "bytes"}, "leave out schema="),
        ({"columns": ["keys"]}, "a message has key"),
        ({"columns": "key"}, "pass a list"),
        ({"columns": {"n": "key"}}, "two columns 'n'"),
        ({"start": "first"}, "is no place in a topic"),
        ({"start": {0: -1}}, "is no place in a topic"),
        ({"start": dt.datetime(2020, 1, 1)}, "no time zone"),  # noqa: DTZ001  that is the mistake
        ({"end": "earliest"}, "leaves no row"),
        ({"on_expired": "skip"}, "is unknown"),
        ({"find_partitions_s": 0}, "must be above 0"),
        ({"find_partitions_s": float("inf")}, "must be above 0, and finite"),
        ({"start": {0: 1.7}}, "is no place in a topic"),
        ({"end": {"t": {0: True}}}, "is no place in a topic"),
        ({"start": {0.5: 1}}, "is no place in a topic"),
        ({"group": ""}, "names no consumer group"),
        ({"config": {"group.id": "x"}}, "pass group="),
        ({"config": {"error_cb": print}}, "the job tells the client's errors"),
    ],
)
def test_arguments_that_are_refused(options: dict[str, Any], told: str) -> None:
    given: dict[str, Any] = {"topics": "t", "bootstrap_servers": "b:1", "schema": {"n": "int64"}}
    given |= options
    with pytest.raises(UsageError, match=told):
        sources.kafka(given.pop("topics"), given.pop("bootstrap_servers"), **given)


def test_a_setting_of_a_wrong_type_is_one_line() -> None:
    source = sources.kafka("t", "b:1", schema={"n": "int64"}, config={"stats_cb": 3})
    with pytest.raises(
        InputError, match=r"^the client of Kafka at b:1 refuses config=: .*stats_cb"
    ):
        source.materialize(cluster=False)


@pytest.mark.parametrize("transactional", ["no", None, 0])
def test_a_sink_is_not_made_transactional_by_a_truth_value(transactional: Any) -> None:
    with pytest.raises(UsageError, match="transactional=.* True or False"):
        sinks.kafka("t", "b:1", transactional=transactional)


def test_numbers_of_partitions_may_be_texts_as_in_json() -> None:
    place = checked_place({"t": {"0": "17", 1: 18}}, ["t"], "start")
    assert place == Places({Partition("t", 0): 17, Partition("t", 1): 18})


def test_passwords_are_not_shown() -> None:
    source = sources.kafka("t", "b:1", schema={"n": "int64"}, config={"sasl.password": "secret"})
    assert "secret" not in repr(source) + source.describe()


def test_new_partitions_never_move_others() -> None:
    topics = ["a", "b"]
    for parallelism in range(1, 6):
        few = [Partition(topic, n) for topic in topics for n in range(3)]
        many = [Partition(topic, n) for topic in topics for n in range(7)]
        shares = [owned(many, topics, one, parallelism) for one in range(parallelism)]
        assert sorted(one for share in shares for one in share) == many
        for instance in range(parallelism):
            assert set(owned(few, topics, instance, parallelism)) <= set(shares[instance])
