"""Transport operators in a plan (Vega III): edges whose rows travel by a user's transport.

Where such an edge leads from one worker to another, the planner adds a send operator to the first,
fused after the operator that produces the rows, and a receive operator to the second, fused before
the operator that consumes them: function calls, no queue. All senders of an edge to one worker
share a receiver, which polls for all of them. Rows that stay within a worker go through a ring, as
on every edge.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..configs.errors import SettingsError
from ..operators.groupings import All, Forward, LocalOrShuffle
from .explanation import Table, number_ranges
from .physical import Edge, PhysicalPlan, Stage
from .streams import CustomStream

GROUPS_MAX = 8
"""How many fan-in groups of an edge `explain` shows."""


def consumer_workers(edge: Edge, producer: int, stages: Sequence[Stage]) -> tuple[int, ...]:
    """Return the consuming workers to which a producing one sends rows of an edge, ascending."""
    target = stages[edge.target_stage]
    if isinstance(edge.grouping, Forward):
        placed = stages[edge.source_stage].instance_worker
        pairs = zip(placed, target.instance_worker, strict=True)
        return tuple(sorted({consumer for worker, consumer in pairs if worker == producer}))
    stays = isinstance(edge.grouping, LocalOrShuffle) and producer in target.workers
    return (producer,) if stays else target.workers


def plan_custom_streams(
    stages: Sequence[Stage], edges: Sequence[Edge], first_id: int, *, per_instance: bool
) -> tuple[CustomStream, ...]:
    """Return the streams of all edges with a user's transport, ordered by edge and sender.

    Args:
        stages: the plan's stages.
        edges: the plan's edges.
        first_id: the id of the first stream; ids of rings are smaller.
        per_instance: whether broadcast edges are addressed instance by instance.

    Raises:
        SettingsError: a broadcast edge has a user's transport and `per_instance` is set.
    """
    found: list[tuple[int, int, int]] = []
    for edge in edges:
        if edge.transport is None:
            continue
        if per_instance and isinstance(edge.grouping, All):
            msg = (
                f"runtime.addressing is 'instance-oriented', but transport {edge.transport.name!r}"
                f" sends {edge.source_operator!r} → {edge.target_operator!r} once per process:"
                f" leave the setting at 'worker-oriented', or omit the transport"
            )
            raise SettingsError(msg)
        for producer in stages[edge.source_stage].workers:
            for consumer in consumer_workers(edge, producer, stages):
                if consumer != producer:
                    found.append((edge.id, producer, consumer))
    return tuple(CustomStream(first_id + number, *ends) for number, ends in enumerate(found))


def custom_transport_tables(plan: PhysicalPlan) -> tuple[Table, ...]:
    """Return a table of the transport operators, one row per edge; () if there are none."""
    rows = tuple(
        (
            str(edge.id),
            edge.transport.name,
            f"{edge.source_operator} → send",
            f"receive → {edge.target_operator}",
            _fan_in(plan, edge.id),
            edge.transport.describe(),
        )
        for edge in plan.edges
        if edge.transport is not None and plan.custom_streams_of_edge(edge.id)
    )
    if not rows:
        return ()
    receivers = {(stream.edge, stream.consumer_worker) for stream in plan.custom_streams}
    return (
        Table(
            f"Transport operators: {len(plan.custom_streams)} send, {len(receivers)} receive",
            ("edge", "transport", "fused", "fused", "worker ← workers", "configuration"),
            rows,
            note="one sender per pair of workers; one receiver per edge and consuming worker",
        ),
    )


def _fan_in(plan: PhysicalPlan, edge: int) -> str:
    """Return from which workers each worker receives; workers with equal senders share a group."""
    senders: dict[int, list[int]] = {}
    for stream in plan.custom_streams_of_edge(edge):
        senders.setdefault(stream.consumer_worker, []).append(stream.producer_worker)
    receivers: dict[str, list[int]] = {}
    for receiver, group in sorted(senders.items()):
        receivers.setdefault(number_ranges(group), []).append(receiver)
    groups = [f"{number_ranges(workers)} ← {group}" for group, workers in receivers.items()]
    rest = len(groups) - GROUPS_MAX
    return "; ".join(groups[:GROUPS_MAX]) + (f"; and {rest} more" if rest > 0 else "")
