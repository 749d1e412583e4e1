"""The rings of each edge, and their size.

====================  =====================================================================
edge's grouping       rings
====================  =====================================================================
all                   one per producing worker, read in place by every consuming worker;
                      for instance-oriented addressing also one per pair, as below
local or shuffle      one from each producing worker to itself if it hosts a consumer,
                      else one to every consuming worker
forward               one from each producing worker to each that hosts an instance of the same
                      number
any other             one per pair of producing and consuming worker
====================  =====================================================================

On an edge with a user's transport (custom_transports.py), only rows that stay within a worker go
through a ring.

A worker's ring to itself is a ring like any other, with the same metrics and back-pressure.
All rings have the same size: the largest power of two with which their sum fits the budget. The sum
includes mirrors on other hosts, since logical hosts may share one machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from ..operators.groupings import All
from .custom_transports import consumer_workers
from .physical import Edge, PhysicalPlan, Stage
from .streams import RingSpec

if TYPE_CHECKING:
    from ..configs.settings import Settings
    from .memory import FreeMemory


def plan_rings(
    stages: tuple[Stage, ...], edges: tuple[Edge, ...], *, per_instance: bool
) -> tuple[RingSpec, ...]:
    """Return the rings of all edges, not sized yet, ordered by edge and producing worker.

    With `per_instance` a broadcast edge gets the rings of both kinds of addressing, so that a
    running job can switch between them.
    """
    rings: list[RingSpec] = []
    for edge in edges:
        for producer, readers, by_instance in _ring_ends(edge, stages, per_instance):
            rings.append(RingSpec(len(rings), edge.id, producer, readers, 0, by_instance))
    return tuple(rings)


def _ring_ends(
    edge: Edge, stages: tuple[Stage, ...], per_instance: bool
) -> Iterator[tuple[int, tuple[int, ...], bool]]:
    """Yield the producing worker and the readers of each ring, and `RingSpec.per_instance`."""
    consumers = stages[edge.target_stage].workers
    for producer in stages[edge.source_stage].workers:
        to_all = isinstance(edge.grouping, All)
        readers = consumer_workers(edge, producer, stages)
        if edge.transport is not None:
            if producer in readers:
                yield producer, (producer,), False
            continue
        if to_all:
            yield producer, consumers, False
        if per_instance or not to_all:
            for consumer in readers:
                yield producer, (consumer,), to_all


def size_rings(plan: PhysicalPlan, settings: Settings, memory: FreeMemory) -> PhysicalPlan:
    """Return the plan with its rings sized to fit the budget.

    Raises:
        ResourceError: even the smallest rings do not fit.
    """
    if not plan.rings:
        return plan
    from ..transport.budget import plan_ring_bytes

    count = sum(1 + plan.mirrors_of(ring) for ring in plan.rings)
    ring_bytes = plan_ring_bytes(
        count, settings.transport, memory.shm_free_bytes, memory.memory_free_bytes
    )
    sized = (replace(ring, capacity_bytes=ring_bytes) for ring in plan.rings)
    return replace(plan, rings=tuple(sized))
