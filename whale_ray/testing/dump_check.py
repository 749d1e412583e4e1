"""`check_dump`: whether state comes out whole when virtual nodes move to other instances."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ..operators.process import CoProcess, Output, Process, common_time, gives_rows
from ..state.keys import hash_keys, virtual_node_of
from ..state.owners import Owners
from ..state.watermarks import WATERMARK_NONE
from ..transport.clock import VirtualClock
from ..transport.wire.batch import Batch
from ..transport.wire.types import Schema
from .conformance import counted, difference, require
from .driving import instance_context

if TYPE_CHECKING:
    import numpy.typing as npt

    Nodes = npt.NDArray[np.int64]

Operator: TypeAlias = Process | CoProcess
Step: TypeAlias = Batch | tuple[Batch | None, Batch | None] | int

_VIRTUAL_NODES = 64
_PIECES_MAX = 3
_WORKERS_MAX = 3


def check_dump(
    make: Callable[[], Operator],
    steps: Sequence[Step],
    *,
    keys: Sequence[str],
    right_keys: Sequence[str] = (),
    broadcast: bool = False,
    parallelisms: Sequence[int] = (1, 3, 7),
    event_times: bool = True,
) -> None:
    """Check `dump` and `load` of an operator: move its state in the middle of its input.

    For each pair of parallelisms, instances of the first take some of the steps. Their state is
    dumped by random sets of virtual nodes and loaded into new instances, of which there are as
    many as the second says and which own other virtual nodes. These take the other steps. All rows
    together must be those of instances whose state was never moved, and so must be those of the
    instances that were dumped, if they continue.

    ::

        check_dump(Baskets, [batch, batch, 5_000_000_000, batch], keys=("customer",))

    Args:
        make: returns an operator, as for `process`.
        steps: what it takes, in this order: a batch, of a co-process a pair of batches (either may
            be None), with event times where it needs them; or a watermark, int64 ns.
        keys: the key columns, of the left input.
        right_keys: those of the right input of a co-process; () if it is broadcast.
        broadcast: whether the left or only input is broadcast, so that each instance picks its own
            keys (`context.owned_nodes`).
        parallelisms: numbers of instances.
        event_times: whether the rows must have the same event times, too.

    Raises:
        ContractError: rows are missing or too many, a dumped row belongs to other virtual nodes,
            or lacks the key columns; the message says which.
    """
    made = make()
    name = type(made).__name__
    require(gives_rows(made), f"{name} does not define dump and load")
    routes = (() if broadcast else tuple(keys), tuple(right_keys))
    plan = _Plan(make, name, routes, tuple(keys), tuple(right_keys), event_times)
    chance = random.Random(11)  # the same moves each time
    for old in parallelisms:
        unmoved = _Fleet(plan, Owners.even(_VIRTUAL_NODES, old))
        unmoved.take(steps)
        unmoved.close()
        wanted = counted(unmoved.rows)
        for new in parallelisms:
            cut = chance.randrange(len(steps) + 1)
            before = _Fleet(plan, Owners.even(_VIRTUAL_NODES, old))
            before.take(steps[:cut])
            after = before.moved(Owners(_shuffled(new, chance)), chance)
            where = f"{name}, moved from {old} to {new} instances behind step {cut}"
            for fleet, rest in ((after, ""), (before, ", where the old instances go on")):
                fleet.take(steps[cut:])
                fleet.close()
                found = difference(wanted, counted(fleet.rows))
                require(not found, f"{where}{rest}: rows {found}")


def _shuffled(parallelism: int, chance: random.Random) -> npt.NDArray[np.uint16]:
    instances = [node % parallelism for node in range(_VIRTUAL_NODES)]
    chance.shuffle(instances)
    return np.array(instances, np.uint16)


@dataclass(frozen=True)
class _Plan:
    """What is run: `routes` are the key columns by which each input is divided."""

    make: Callable[[], Operator]
    name: str
    routes: tuple[tuple[str, ...], tuple[str, ...]]
    keys: tuple[str, ...]
    right_keys: tuple[str, ...]
    event_times: bool

    def key_sets(self, batch: Batch) -> list[tuple[str, ...]]:
        """Return the key columns, of either input, that a batch has."""
        sets = [self.keys, self.right_keys] if self.right_keys else [self.keys]
        return [names for names in sets if all(name in batch.schema for name in names)]


class _Fleet:
    """All instances of the operator under one table of owners."""

    def __init__(
        self, plan: _Plan, owners: Owners, watermark_ns: int = WATERMARK_NONE, rows: Any = ()
    ) -> None:
        self._plan, self._owners, self._watermark_ns = plan, owners, watermark_ns
        self.rows: list[Mapping[str, Any]] = list(rows)
        self._objects: list[Operator] = []
        self._served: list[tuple[int, ...]] = []
        parallelism = int(owners.instances.max()) + 1
        per_worker = plan.make().per_worker
        objects = min(parallelism, _WORKERS_MAX) if per_worker else parallelism
        for first in range(objects):
            self._open(tuple(range(first, parallelism, objects)), parallelism)

    def _open(self, instances: tuple[int, ...], parallelism: int) -> None:
        operator = self._plan.make()
        context = replace(
            instance_context(instances[0], parallelism, clock=VirtualClock()),
            instances=instances,
            virtual_nodes=_VIRTUAL_NODES,
            keys=self._plan.routes if isinstance(operator, CoProcess) else self._plan.routes[:1],
            in_event_time_order=operator.input_order != "arrival",
            owners=self._owners,
            watermark_ns=self._watermark_ns,
        )
        operator.open(context)
        self._objects.append(operator)
        self._served.append(instances)

    def take(self, steps: Sequence[Step]) -> None:
        """Hand steps over."""
        for step in steps:
            if isinstance(step, int):
                self._watermark_ns = step
            for operator, instances in zip(self._objects, self._served, strict=True):
                out = _Listed(self.rows, self._plan.event_times, instances)
                if isinstance(step, int):
                    out.time_ns = step
                    operator.on_watermark(step, out)
                elif isinstance(operator, CoProcess):
                    assert isinstance(step, tuple), "a co-process takes pairs of batches"
                    left, right = (self._part(port, step[port], instances) for port in (0, 1))
                    hand_over(operator, left, right, out)
                else:
                    assert isinstance(step, Batch), "a process takes batches"
                    part = self._part(0, step, instances)
                    if part is not None:
                        out.time_ns = common_time(part)
                        operator.on_batch(part, out)

    def _part(self, port: int, batch: Batch | None, instances: tuple[int, ...]) -> Batch | None:
        """Return the rows for an object; None without any."""
        columns = self._plan.routes[port]
        if batch is not None and columns:
            nodes = virtual_node_of(hash_keys(batch, columns)[0], _VIRTUAL_NODES)
            batch = batch.filter(np.isin(self._owners.of(nodes), instances))
        return None if batch is None or not batch.num_rows else batch

    def close(self) -> None:
        """End the input."""
        for operator, instances in zip(self._objects, self._served, strict=True):
            out = _Listed(self.rows, self._plan.event_times, instances)
            if self._watermark_ns != WATERMARK_NONE:
                out.time_ns = self._watermark_ns + 1
            operator.close(out)

    def moved(self, owners: Owners, chance: random.Random) -> _Fleet:
        """Return new instances that have the state of these."""
        after = _Fleet(self._plan, owners, self._watermark_ns, self.rows)
        for target, instances in zip(after._objects, after._served, strict=True):
            wanted = owners.nodes_of(*instances).tolist()
            chance.shuffle(wanted)
            step = 1 + len(wanted) // chance.randint(1, _PIECES_MAX)
            for start in range(0, len(wanted), step):
                piece = np.array(sorted(wanted[start : start + step]), np.int64)
                for source, served in zip(self._objects, self._served, strict=True):
                    theirs = piece[np.isin(self._owners.of(piece), served)]
                    for batch in source.dump(theirs):
                        self._check(batch, theirs)
                        target.load(_sent(batch))
        return after

    def _check(self, batch: Batch, nodes: Nodes) -> None:
        name = self._plan.name
        require(isinstance(batch, Batch), f"{name}.dump must return batches, not {batch!r}")
        if not batch.num_rows:
            return
        sets = self._plan.key_sets(batch)
        names = ", ".join(batch.schema.names)
        require(bool(sets), f"{name}.dump returns rows without the key columns; it has {names}")
        for columns in sets:
            found = virtual_node_of(hash_keys(batch, columns)[0], _VIRTUAL_NODES)
            others = ~np.isin(found, nodes)
            if not others.any():
                return
        row = batch.preview(int(np.argmax(others)))
        require(False, f"{name}.dump returns a row of another virtual node than asked for: {row}")


def hand_over(operator: CoProcess, left: Batch | None, right: Batch | None, out: Output) -> None:
    """Let a co-process take rows of both inputs: merged by event time where it wants that."""
    if operator.input_order == "arrival":
        for batch, call in ((left, operator.on_left), (right, operator.on_right)):
            if batch is not None:
                out.time_ns = common_time(batch)
                call(batch, out)
    elif left is not None or right is not None:
        nothing = Batch(Schema(()), [], 0, np.empty(0, np.int64))
        sides = [nothing if batch is None else batch for batch in (left, right)]
        times = [side.times for side in sides if side.times is not None]
        order = np.repeat([False, True], [side.num_rows for side in sides])
        if len(times) == len(sides):
            order = order[np.argsort(np.concatenate(times), kind="stable")]
        operator.on_merged(sides[0], sides[1], order, out)


def _sent(batch: Batch) -> Batch:
    """Return a batch as it arrives elsewhere: from a file, or another process."""
    if not len(batch.schema):
        return batch.copy()
    times = None if batch.times is None else batch.times.copy()
    return Batch.from_arrow(batch.to_arrow()).copy().with_times(times)


class _Listed(Output):
    """Appends what is emitted to a list of rows."""

    def __init__(
        self, rows: list[Mapping[str, Any]], event_times: bool, instances: tuple[int, ...]
    ) -> None:
        self._rows, self._event_times = rows, event_times
        self.instances = instances

    def emit(self, batch: Any, times: Any = None) -> None:
        self.emit_to("main", batch, times)

    def emit_rows(self, rows: Iterable[Mapping[str, Any]]) -> None:
        self.emit_to("main", list(rows))

    def emit_to(self, output: str, rows: Any, times: Any = None) -> None:
        if isinstance(rows, Mapping):
            rows = Batch.from_pydict(dict(rows))
        if isinstance(rows, Batch):
            times = rows.times if times is None else times
            rows = rows.to_pylist()
        at = [self.time_ns] * len(rows) if times is None else times.tolist()
        for row, time_ns in zip(rows, at, strict=True):
            more = {"(time)": time_ns} if self._event_times else {}
            self._rows.append({**row, "(output)": output, **more})
