"""`check_dump` passes state that moves and names what is lost; `explain` tells levels of state."""

from __future__ import annotations

import numpy as np
import pytest

import whale_ray as whale
from whale_ray.testing import ContractError, check_dump


class Latest(whale.Process):
    """The newest number of each customer, and how many there were, at the end."""

    def open(self, context):
        self.context = context
        self.latest = {}

    def on_row(self, row, out):
        count = self.latest.get(row.customer, (0, 0))[0]
        self.latest[row.customer] = (count + 1, row.number)

    def dump(self, nodes):
        rows = [(name, *kept) for name, kept in self.latest.items()]
        if rows:
            batch = whale.Batch.from_rows(rows, SAVED)
            yield batch.filter(np.isin(self.context.nodes_of(batch), nodes))

    def load(self, batch):
        for row in batch.rows():
            self.latest[row["customer"]] = (row["count"], row["number"])

    def close(self, out):
        for name, (count, number) in self.latest.items():
            out.emit_row(customer=name, count=count, number=number)


SAVED = whale.Schema.of(customer="string", count="int64", number="int64")
STEPS = [
    whale.Batch.from_rows([{"customer": f"c{n * part % 17}", "number": n} for n in range(40)])
    for part in (1, 2, 3, 5)
]


def test_state_that_moves_by_virtual_node_passes():
    check_dump(Latest, STEPS, keys=("customer",))


class Forgetful(Latest):
    def load(self, batch):
        super().load(batch.slice(1))


class Greedy(Latest):
    def dump(self, nodes):
        yield from super().dump(np.arange(self.context.virtual_nodes))


class Keyless(Latest):
    def dump(self, nodes):
        for batch in super().dump(nodes):
            yield batch.select(("count", "number"))


class Destructive(Latest):
    def dump(self, nodes):
        yield from list(super().dump(nodes))
        self.latest.clear()


class Unkept(Latest):
    def open(self, context):
        super().open(context)
        self.latest = {}
        self.seen = 0

    def on_row(self, row, out):
        super().on_row(row, out)
        self.seen += 1

    def close(self, out):
        out.emit_row(seen=self.seen)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Forgetful, r"Forgetful, moved from 1 to . instances behind step \d: rows .* missing"),
        (Greedy, "a row of another virtual node than asked for: {customer="),
        (Keyless, "rows without the key columns; it has count, number"),
        (Destructive, "where the old instances go on: rows .* missing"),
        (Unkept, "too many, such as .*seen"),
        (whale.Process, "Process does not define dump and load"),
    ],
)
def test_what_is_lost_is_named(kind, message):
    with pytest.raises(ContractError, match=message):
        check_dump(kind, STEPS, keys=("customer",), parallelisms=(1, 3))


def topology(kind) -> whale.Topology:
    topology = whale.Topology("levels")
    rows = topology.source(whale.sources.iterable([{"customer": "a", "number": 1}]), id="rows")
    keyed = rows.key_by("customer").process(kind, id="kept")
    keyed.sink(whale.sinks.collect(), id="out")
    return topology


class Whole(whale.Process):
    def on_row(self, row, out):
        out.emit_row(**row)


class Half(Latest):
    load = whale.Process.load


class Undeclared(whale.KeyedProcess):
    def on_row(self, row, out):
        out.emit_row(**row)


def test_explain_names_the_level_of_state_and_how_it_moves():
    assert "rows   rows   by virtual node: dump and load" in str(topology(Latest).explain())
    shown = str(topology(Whole).explain())
    assert "opaque  its object  whole: Whole has no dump and load" in shown
    shown = str(topology(Undeclared).explain())
    assert "opaque  its object  whole: Undeclared declares no state" in shown
    with pytest.raises(whale.errors.TopologyError, match="Half defines dump and lacks load"):
        topology(Half)
