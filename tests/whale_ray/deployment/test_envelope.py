"""What cannot be sent to workers is named, with the remedy."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import whale_ray as whale
from whale_ray.api.job_requests import NewJob
from whale_ray.configs.errors import UsageError
from whale_ray.configs.settings import Settings
from whale_ray.deployment.envelope import seal


def refusal_of(source: whale.sources.Source, function: Any) -> str:
    topology = whale.Topology("sent")
    mapped = topology.source(source, id="rows").map(function, id="mapped")
    mapped.sink(whale.sinks.collect(), id="out")
    request = NewJob.checked(topology.logical_plan(), Settings(), 1)
    with pytest.raises(UsageError) as refused:
        seal(request.assignment(request.settings))
    return str(refused.value)


def test_a_function_that_holds_a_lock_is_named() -> None:
    lock = threading.Lock()
    told = refusal_of(whale.sources.iterable([{"a": 1}]), lambda row: {"b": lock.locked()})
    assert told.startswith("operator 'mapped' (test_envelope.py:")
    assert told.endswith(
        "cannot pickle '_thread.lock' object; create files, locks and connections on the worker, in"
        " open() of a class (whale.Process, or a source or sink), rather than beforehand"
    )


def test_a_generator_of_rows_has_a_remedy_of_its_own() -> None:
    told = refusal_of(whale.sources.iterable({"a": one} for one in range(3)), dict)
    assert told.startswith("operator 'rows' (test_envelope.py:")
    assert told.endswith("not its result: iterable(rows) instead of iterable(rows())")
