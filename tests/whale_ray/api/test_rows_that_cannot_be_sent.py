"""Rows that cannot be sent: the message names them, and its remedy works."""

from __future__ import annotations

import re
from typing import Any

import pytest

import whale_ray as whale
from whale_ray.tasks import addressing


class Total(whale.Process):
    def open(self, context: Any) -> None:
        self.total = 0

    def on_row(self, row: Any, out: Any) -> None:
        self.total += row.v

    def close(self, out: Any) -> None:
        out.emit_row(total=self.total)


def one_large_row(nbytes: int) -> whale.Topology:
    topology = whale.Topology("large")
    rows = topology.source(whale.sources.iterable([{"v": "x" * nbytes}]), id="rows")
    rows.global_().filter(lambda row: True, id="keep").sink(whale.sinks.collect(), id="out")
    return topology


def test_the_message_about_a_row_too_large_for_a_ring_proposes_settings_that_help(
    one_host: Any,
) -> None:
    with pytest.raises(whale.errors.JobError) as error:
        one_host(one_large_row(10_000_000))
    found = re.search(r"; set (\S+) and (\S+) to (\d+) \(row: ", str(error.value))
    assert found, str(error.value)
    settings = {found[1]: int(found[3]), found[2]: int(found[3])}
    assert one_host(one_large_row(10_000_000), settings).results("out").rows == 1


def test_a_row_too_large_for_any_ring_is_reported() -> None:
    assert addressing._larger_rings(1 << 28).startswith("no ring takes more than 268,435,448: ")
    assert addressing._larger_rings(268_435_448).endswith(" to 1073741824")


def numbered(value: object) -> tuple[whale.Topology, whale.Stream]:
    rows = [{"v": 1}, {"v": value}, {"v": 0}]
    topology = whale.Topology("numbered")
    source = topology.source(whale.sources.iterable(rows, schema={"v": "int64"}), id="rows")
    return topology, source


def test_a_null_in_direct_is_named_or_dropped_and_counted(one_host: Any) -> None:
    topology, source = numbered(None)
    source.direct("v").process(Total, id="count", parallelism=2).sink(
        whale.sinks.collect(), id="out"
    )
    with pytest.raises(whale.errors.BadRowError) as error:
        one_host(topology)
    assert str(error.value) == (
        "operator 'rows' sends a row to 'count' with a null in 'v', which names no instance "
        "(direct v): {v=None}; fill or filter such rows, or let direct drop and count them with "
        "on_null='drop'"
    )
    topology, source = numbered(None)
    source.direct("v", on_null="drop").process(Total, id="count", parallelism=2).sink(
        whale.sinks.collect(), id="out"
    )
    job = one_host(topology)
    assert sorted(row["total"] for row in job.results("out").preview()) == [0, 1]
    assert job.metrics().operator("rows").rows_dropped == {"null key": 1}
