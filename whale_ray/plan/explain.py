"""Explain a topology before it runs: its logical plan, and which stage would run on which worker.

Nothing is started and no ring is created. A job whose rings do not fit into memory is explained
too; the error message then takes the place of the memory total.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from ..configs.errors import ResourceError
from ..configs.units import format_bytes
from ..operators.groupings import Forward
from .column_pruning import prune_columns
from .custom_transports import custom_transport_tables
from .data_path import Devices, data_paths, describe_link, describe_link_rule, probe_devices
from .diagram import draw
from .explain_checkpoints import checkpoint_tables
from .explain_pipelines import pipeline_tables
from .explanation import Explanation, Table, number_ranges
from .late_merge import AggregationChoice, choose_aggregations
from .logical import (
    CHANGES,
    RIGHT,
    TABLE,
    Input,
    LogicalPlan,
    OperatorKind,
    OperatorNode,
    describe_output,
)
from .memory import FreeMemory, memory_for_rings
from .physical import Edge, PhysicalPlan, Stage
from .planner import plan_unsized
from .requests import CPU, Cluster, describe_amounts, host_demands, worker_demands
from .rings import size_rings

if TYPE_CHECKING:
    from ..configs.settings import Settings, TransportSettings
    from .streams import RingSpec


def explain(
    logical: LogicalPlan,
    settings: Settings,
    workers: int | None = None,
    *,
    cluster: Cluster | None = None,
    memory: Callable[[Settings], FreeMemory] = memory_for_rings,
    devices: Callable[[TransportSettings], Devices] = probe_devices,
) -> Explanation:
    """Return the logical plan, the physical plan and the rings with their memory.

    Args:
        logical: the topology.
        settings: as for `plan`.
        workers: as for `plan`.
        cluster: the Ray cluster that would run it; None: this machine alone.
        memory: returns how much memory is free for rings.
        devices: returns the RDMA devices of this machine; called only if there are several hosts.

    Raises:
        TopologyError: as `plan`; a lack of memory is part of the explanation and not raised.
    """
    free = memory(settings)
    logical = prune_columns(logical)
    physical = plan_unsized(logical, settings, workers, () if cluster is None else cluster.places)
    refusal = ""
    try:
        physical = size_rings(physical, settings, free)
    except ResourceError as error:
        refusal = str(error)
    transport = settings.transport
    share = transport.memory_budget_fraction
    found = devices(transport) if physical.relays else Devices(())
    return Explanation(
        title=f"topology {logical.name}",
        tables=(
            _logical_table(logical),
            _stage_table(physical),
            *pipeline_tables(physical, settings),
            _edge_table(physical, describe_link(transport, found)),
            *custom_transport_tables(physical),
            *(() if cluster is None else (_ray_table(physical, cluster),)),
            *_aggregation_tables(choose_aggregations(logical, settings, physical.workers)),
            *_state_tables(physical, settings),
            *checkpoint_tables(logical, settings),
            *_host_tables(physical, describe_link_rule(transport, found)),
            _ring_table(physical, refusal or _budget_line(physical, free, share)),
        ),
        diagram_svg=draw(physical),
    )


def describe_payload(node: OperatorNode) -> str:
    """Return in a few words what an operator does."""
    describe = getattr(node.payload, "describe", None)
    if callable(describe):
        return str(describe())
    made_by = getattr(node.payload, "func", node.payload)  # functools.partial of a class
    return getattr(made_by, "__name__", type(made_by).__name__)


def _logical_table(logical: LogicalPlan) -> Table:
    rows = tuple(
        (
            node.id,
            node.kind.value,
            describe_payload(node),
            ", ".join(_describe_input(logical, feed) for feed in node.inputs),
            _describe_time(node),
            _describe_order(node),
            node.location,
        )
        for node in logical.nodes
    )
    return Table(
        f"Logical plan: {_count(len(rows), 'operator')}",
        ("operator", "kind", "what", "reads", "event time", "takes rows in order of", "written at"),
        rows,
    )


def _describe_input(logical: LogicalPlan, feed: Input) -> str:
    read = logical.output_name(feed.source)
    if isinstance(feed.grouping, Forward):
        return read
    return f"{read} ({feed.grouping.describe()})"


def _describe_time(node: OperatorNode) -> str:
    """Return by which column a source assigns event times, and what becomes of late rows."""
    if node.event_time is None:
        return ""
    assigned = node.event_time
    text = f"{assigned.column}, ≤ {assigned.max_out_of_order_ms} ms out of order"
    if assigned.on_late != "fail":
        text += f", later ones {'dropped' if assigned.on_late == 'drop' else 'passed on'}"
    if assigned.idle_after_ms is not None:
        text += f", idle after {assigned.idle_after_ms:g} ms"
    return text


def _describe_order(node: OperatorNode) -> str:
    """Return the order in which an operator takes its rows, and why."""
    match node.kind:
        case OperatorKind.SOURCE:
            return ""
        case OperatorKind.TRANSFORM:
            return "arrival: it keeps no state"
        case OperatorKind.TABLE_JOIN:
            return "arrival: each row meets the whole table"
        case OperatorKind.UNION:
            return "arrival: it does not run"
        case OperatorKind.SINK:
            return "arrival: it writes rows as they come"
        case _:
            order = "event time, buffered" if node.event_time_order else "arrival"
            late = "; late rows, too" if node.takes_late_rows else ""
            return f"{order}: {node.order_reason}{late}"


def _stage_table(plan: PhysicalPlan) -> Table:
    rows = tuple(
        (
            str(stage.id),
            _describe_chain(plan, stage, stage.head),
            f"×{stage.parallelism}",
            _describe_placement(stage),
            "one object per worker" if stage.per_worker else "",
            _describe_request(plan.operator(stage.head)),
        )
        for stage in plan.stages
    )
    return Table(
        f"Physical plan: {_count(len(rows), 'stage')} on {_count(plan.workers, 'worker')}",
        ("stage", "fused operators", "instances", "placed", "served by", "each asks Ray for"),
        rows,
    )


def _describe_request(node: OperatorNode) -> str:
    return "" if node.request is None else node.request.describe()


def _ray_table(plan: PhysicalPlan, cluster: Cluster) -> Table:
    """Return a table of the resources that the workers of each host reserve on its node."""
    demands = worker_demands(plan, cluster.worker_cpus)
    rows = []
    for host, (node, demand) in enumerate(
        zip(cluster.places, host_demands(plan, demands), strict=True)
    ):
        free = cluster.free.get(node.id, {})
        names = {CPU: 0.0, **demand}
        rows.append(
            (
                plan.hosts.names[host],
                node.address,
                _describe_workers(plan.hosts.workers_on(host)),
                describe_amounts(demand),
                describe_amounts({name: free.get(name, 0.0) for name in names}),
                describe_amounts({name: node.resources.get(name, 0.0) for name in names}),
            )
        )
    headers = ("host", "node", "workers", "reserve", "free now", "in all")
    return Table(f"Ray: {_count(len(rows), 'host')}", headers, tuple(rows))


def _describe_chain(plan: PhysicalPlan, stage: Stage, operator: str) -> str:
    """Return an operator and what is fused after it.

    This is "a → b", with branches "a → (b | c → d)", after a side output "a → (b | late: c)".
    """
    node = plan.operator(operator)
    branches = [
        describe_output(node, plan.output_read(after)) + _describe_chain(plan, stage, after)
        for after in stage.links[operator]
        if isinstance(after, str)
    ]
    if not branches:
        return operator
    behind = branches[0] if len(branches) == 1 else f"({' | '.join(branches)})"
    return f"{operator} → {behind}"


def _describe_placement(stage: Stage) -> str:
    by_count: dict[int, list[int]] = {}
    for worker, count in sorted(Counter(stage.instance_worker).items()):
        by_count.setdefault(count, []).append(worker)
    parts = []
    for count, workers in sorted(by_count.items(), reverse=True):
        where = f"{'each of ' if len(workers) > 1 else ''}{_describe_workers(workers)}"
        parts.append(where if stage.parallelism == 1 else f"{count} on {where}")
    return "; ".join(parts)


def _describe_workers(workers: Iterable[int]) -> str:
    """Return worker numbers as ranges: "workers 0–3, 7"."""
    ranges = number_ranges(workers)
    return f"worker{'' if ranges.isdecimal() else 's'} {ranges}"


def _edge_table(plan: PhysicalPlan, between_hosts: str) -> Table:
    described = {path.edge: path.describe(between_hosts) for path in data_paths(plan)}
    rows = tuple(
        (
            str(edge.id),
            f"{plan.source_name(edge)} → {edge.target_operator}{_describe_port(plan, edge)}",
            edge.grouping.describe(),
            ("event-time order" if edge.ordered else "times") if edge.carries_time else "",
            described[edge.id] + _describe_batches(edge),
            edge.reason,
        )
        for edge in plan.edges
    )
    return Table(
        f"Edges: {len(rows)}" if rows else "Edges: none, everything is fused",
        ("edge", "from → to", "grouping", "carries", "carried by", "not fused because"),
        rows,
    )


def _describe_batches(edge: Edge) -> str:
    if edge.batch_rows is None:
        return ""
    return f", {edge.batch_rows:,} row{'' if edge.batch_rows == 1 else 's'} at a time"


def _aggregation_tables(choices: tuple[AggregationChoice, ...]) -> tuple[Table, ...]:
    """Return a table of how aggregates are computed, and joins and the like; () without any."""
    rows = tuple((one.operator, one.asked, one.chosen, one.reason) for one in choices)
    headers = ("operator", "asked for", "runs", "because")
    return (Table("Aggregates by key", headers, rows),) if rows else ()


def _state_tables(plan: PhysicalPlan, settings: Settings) -> tuple[Table, ...]:
    """Return a table of what stateful operators keep, and how it moves; () if there are none."""
    stateful = [node for node in plan.logical.nodes if node.kind.is_stateful or node.declared_state]
    if not stateful:
        return ()
    rows = tuple(
        (
            node.id,
            _state_level(node),
            ", ".join(node.declared_state) or ("rows" if node.keeps_rows else "its object"),
            node.state_reason or ("whole" if _state_level(node) == "opaque" else "by virtual node"),
        )
        for node in stateful
    )
    runtime = settings.runtime
    title = f"State: up to {format_bytes(runtime.state_bytes)} in each worker (runtime.state_bytes)"
    if runtime.spill_bytes_max:
        title += f", then {format_bytes(runtime.spill_bytes_max)} on disk (runtime.spill_bytes_max)"
    return (Table(title, ("operator", "level", "keeps", "moves"), rows),)


def _state_level(node: OperatorNode) -> str:
    if node.keeps_rows:
        return "rows"
    return "declared" if node.declared_state else "opaque"


def _describe_port(plan: PhysicalPlan, edge: Edge) -> str:
    kind = plan.operator(edge.target_operator).kind
    if kind is OperatorKind.TABLE_JOIN:
        return {TABLE: " (table)", CHANGES: " (changes)"}.get(edge.port, "")
    if kind is not OperatorKind.CO_PROCESS:
        return ""
    return " (right)" if edge.port == RIGHT else " (left)"


def _host_tables(plan: PhysicalPlan, note: str) -> tuple[Table, ...]:
    """Return a table of the hosts; () if there is only one."""
    if not plan.relays:
        return ()
    rows = []
    for host, name in enumerate(plan.hosts.names):
        parents = [plan.parents_of(ring).get(host) for ring in plan.rings]
        served = sum(len(plan.children_of(ring, host)) for ring in plan.rings)
        rows.append(
            (
                name,
                _describe_workers(plan.hosts.workers_on(host)),
                _count(sum(parent is not None for parent in parents), "ring"),
                _count(served, "ring") if served else "",
            )
        )
    route = plan.hosts.route
    shape = route if route in ("star", "chain") else f"{route} tree"
    title = f"Hosts: {plan.hosts.count}, each with a relay; streams travel as a {shape}"
    headers = ("host", "workers", "mirrors", "sends on")
    return (Table(title, headers, tuple(rows), note),)


def _ring_table(plan: PhysicalPlan, note: str) -> Table:
    rows = []
    layouts = [
        (
            edge,
            per_instance,
            [r for r in plan.rings_of_edge(edge.id) if r.per_instance == per_instance],
        )
        for edge in plan.edges
        for per_instance in (False, True)
    ]
    for edge, per_instance, rings in layouts:
        if not rings:
            continue
        capacity = rings[0].capacity_bytes
        readers = len(rings[0].consumer_workers)
        mirrors = sum(plan.mirrors_of(ring) for ring in rings)
        rows.append(
            (
                f"{edge.id}, one by one" if per_instance else str(edge.id),
                f"{len(rings)} + {_count(mirrors, 'mirror')}" if mirrors else str(len(rings)),
                format_bytes(capacity) if capacity else "?",
                format_bytes(capacity * _copies(plan, rings)) if capacity else "?",
                _count(readers, "worker"),
            )
        )
    return Table(
        f"Rings: {len(plan.rings) or 'none'}",
        ("edge", "rings", "each", "together", "each read by"),
        tuple(rows),
        note=note if rows else "",
    )


def _copies(plan: PhysicalPlan, rings: Iterable[RingSpec]) -> int:
    return sum(1 + plan.mirrors_of(ring) for ring in rings)


def _budget_line(plan: PhysicalPlan, free: FreeMemory, share: float) -> str:
    place, lesser = "memory", free.memory_free_bytes
    if free.shm_free_bytes is not None and free.shm_free_bytes < lesser:
        place, lesser = "/dev/shm", free.shm_free_bytes
    each = plan.rings[0].capacity_bytes if plan.rings else 0
    total = format_bytes(plan.ring_bytes_total)
    return (
        f"total: {_copies(plan, plan.rings)} × {format_bytes(each)} = {total} of a budget of"
        f" {format_bytes(lesser * share)} ({share:.0%} of {format_bytes(lesser)} free in {place})"
    )


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
