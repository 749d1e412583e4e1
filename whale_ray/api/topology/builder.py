"""`Topology`: where a user begins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from ...configs.errors import InputError, UsageError
from ...plan.logical import LogicalPlan, OnBadRows, OperatorKind, OperatorNode
from . import misuse
from .checks import check_choice, check_name, describe_value, mistake
from .endpoints import check_source, check_transport
from .known import KnownColumns, check_columns, columns_of
from .locations import caller_location
from .registry import Registry
from .streams import Stream

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ...configs.settings import Settings
    from ...operators.event_time import EventTime, Unit
    from ...operators.sources.base import Source
    from ...plan.explanation import Explanation
    from ...transport.custom.operators import Transport

_POLICIES = ("fail", "drop")


class Topology:
    """A graph of operators, from sources to sinks, that can be explained and run.

    ::

        topology = whale.Topology("speeding")
        trips = topology.source(whale.sources.parquet("trips/"), id="trips")
        fast = trips.filter(whale.col("speed") > 120, id="fast")
        fast.sink(whale.sinks.parquet("fast/"), id="out")
        print(topology.explain())
        whale.run(topology)

    Building it runs nothing and reads no row. Every operator has an id that all messages, metrics
    and results name it by; one that is not given is chosen: the verb and its number, "filter-1".

    Args:
        name: names the job; letters, digits, '-', '_' and '.'.
        transport: your own, a `whale.transports.Transport`, for all rows that go from one process
            to another; `Stream.via` chooses one for a single stream.

    Raises:
        TopologyError: the name is not fit, or the transport is none.
    """

    def __init__(self, name: str, *, transport: Transport | None = None) -> None:
        check_name(name, "topology name")
        if transport is not None:
            check_transport(f"topology {name!r}: transport=", transport)
        self._registry = Registry(name, transport)

    if not TYPE_CHECKING:  # a type checker knows what is missing; everybody else is told the fix

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(misuse.on_topology(name))

    @property
    def name(self) -> str:
        """The name given at the start."""
        return self._registry.name

    def __repr__(self) -> str:
        return f"Topology({self.name!r})"

    def source(
        self,
        source: Source,
        *,
        id: str | None = None,
        event_time: str | None = None,
        event_time_unit: Unit | None = None,
        max_out_of_order_ms: float = 0,
        on_late: OnBadRows = "fail",
        on_bad_rows: OnBadRows = "fail",
        parallelism: int | None = None,
    ) -> Stream:
        """Read an input.

        Args:
            source: one of `whale.sources`.
            id: a name for the operator; chosen if left out.
            event_time: the column that says when a row happened.
            event_time_unit: "s", "ms", "us" or "ns", where that column holds integers.
            max_out_of_order_ms: by how much a row may be earlier than one read before it.
            on_late: for rows that are earlier than that: "fail" or "drop" (and count).
            on_bad_rows: for rows that cannot be read or have no event time: "fail" or "drop".
            parallelism: number of instances that share the input; one, which keeps its order, if
                left out.

        Raises:
            TopologyError: what was passed does not fit, and how to mend it.
            InputError: the input is missing, or lacks a column.
        """
        operator_id = self._registry.choose_id("source", id)
        check_source(operator_id, source)
        check_choice(operator_id, "on_late", on_late, _POLICIES)
        check_choice(operator_id, "on_bad_rows", on_bad_rows, _POLICIES)
        source = source.with_bad_rows(on_bad_rows)
        source.check()
        known = columns_of(source.schema())
        assigned: EventTime | None = None
        if event_time is None:
            _refuse_without_event_time(operator_id, event_time_unit, max_out_of_order_ms, on_late)
        else:
            assigned = _event_time(
                operator_id, event_time, event_time_unit, max_out_of_order_ms, on_late, on_bad_rows
            )
            check_columns(operator_id, "event_time", (event_time,), known)
            _check_event_time_type(operator_id, assigned, known)
        node = OperatorNode(
            id=operator_id,
            kind=OperatorKind.SOURCE,
            payload=source,
            verb="source",
            parallelism=parallelism,
            event_time=assigned,
            has_event_time=assigned is not None,
            location=caller_location(),
        )
        self._registry.add(node, known)
        return Stream(self._registry, operator_id)

    def logical_plan(self) -> LogicalPlan:
        """Return what was built so far, checked as a whole.

        Raises:
            TopologyError: there is no source or no sink, or an operator that leads to none.
        """
        return self._registry.logical_plan()

    def explain(
        self,
        workers: int | None = None,
        settings: Settings | Mapping[str, object] | None = None,
        *,
        on: Literal["ray"] | None = None,
        address: str | None = None,
    ) -> Explanation:
        """Return the logical and the physical plan, with all rings and their memory.

        Starts nothing. `print` it, or leave it last in a notebook's cell.

        Args:
            workers: number of workers; one per core if left out.
            settings: as for the run; the defaults and the environment's if left out.
            on: "ray" shows what would run on which node of the Ray that `submit` would join, what
                the workers reserve there, and what is free.
            address: of that Ray, as for `submit`.

        Raises:
            UsageError: there is no other place than "ray", or the address is not one.
            ResourceError: no Ray answers there, or it has not what operators ask for.
            TopologyError: as `logical_plan`, or an operator is more parallel than can be.
            SettingsError: the environment holds a wrong setting, or there are too many workers.
        """
        from ...configs.loading import load_settings
        from ...configs.settings import Settings
        from ...plan.explain import explain

        if not isinstance(settings, Settings):
            settings = load_settings(overrides=settings)
        if on is None:
            return explain(self.logical_plan(), settings, workers)
        if on != "ray":
            msg = f"explain: on={on!r} is not known; use on='ray', or leave it out"
            raise UsageError(msg)
        from ...deployment.on_ray.ray_explain import explain_on_ray

        return explain_on_ray(self.logical_plan(), settings, workers, address)


def _event_time(
    operator_id: str,
    column: object,
    unit: Unit | None,
    max_out_of_order_ms: float,
    on_late: OnBadRows,
    on_null: OnBadRows,
) -> EventTime:
    if not isinstance(column, str):
        raise mistake(
            operator_id, f"event_time is {describe_value(column)}: pass the name of a column"
        )
    if isinstance(max_out_of_order_ms, bool) or not isinstance(max_out_of_order_ms, (int, float)):
        raise mistake(
            operator_id,
            f"max_out_of_order_ms is {describe_value(max_out_of_order_ms)}: pass milliseconds",
        )
    from ...operators.event_time import EventTime

    try:
        return EventTime(column, max_out_of_order_ms, unit, on_late, on_null)
    except InputError as error:
        raise mistake(operator_id, str(error)) from None


def _check_event_time_type(
    operator_id: str, event_time: EventTime, known: KnownColumns | None
) -> None:
    kind = (known or {}).get(event_time.column)
    if kind is None:
        return
    try:
        event_time.ns_per_tick(kind)
    except InputError as error:
        raise mistake(operator_id, str(error)) from None


def _refuse_without_event_time(
    operator_id: str, unit: str | None, max_out_of_order_ms: float, on_late: OnBadRows
) -> None:
    for name, given in (
        ("event_time_unit", unit is not None),
        ("max_out_of_order_ms", max_out_of_order_ms != 0),
        ("on_late", on_late != "fail"),
    ):
        if given:
            raise mistake(
                operator_id, f"{name} says nothing without event times: add event_time='column'"
            )
