"""How the end of a job is printed: short enough to be read."""

from __future__ import annotations

import whale_ray as whale


def test_an_outcome_prints_what_was_made_and_not_every_counter() -> None:
    topology = whale.Topology("numbers")
    numbers = topology.source(whale.sources.iterable([{"a": 1}, {"a": 2}]))
    numbers.sink(whale.sinks.collect(), id="out")
    outcome = whale.run(topology).outcome()
    printed = str(outcome)
    assert "state='finished'" in printed
    assert "'out': SinkResult(rows=2" in printed
    assert outcome.results["out"].schema is not None
    assert outcome.metrics.members
    assert "metrics" not in printed
    assert "schema" not in printed
    assert "members" not in repr(outcome.metrics)
