"""`Topology`: the graph of operators that a user builds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from ...configs.errors import UsageError
from ...operators.event_time import MAX_AHEAD_MS
from ...plan.logical import LogicalPlan, OnBadRows, OperatorKind, OperatorNode
from . import misuse
from .checks import check_choice, check_name
from .endpoints import check_source, check_transport
from .event_times import event_time_of
from .known import columns_of
from .locations import caller_location
from .registry import Registry
from .streams import Stream

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ...configs.settings import Settings
    from ...operators.event_time import LatePolicy, Unit
    from ...operators.sources.base import Source
    from ...plan.explanation import Explanation
    from ...transport.custom.operators import Transport

_POLICIES = ("fail", "drop")
_LATE_POLICIES = ("fail", "drop", "pass")


class Topology:
    """A graph of operators, from sources to sinks, that `explain` shows and `run` executes.

    ::

        topology = whale.Topology("speeding")
        trips = topology.source(whale.sources.parquet("trips/"), id="trips")
        fast = trips.filter(whale.col("speed") > 120, id="fast")
        fast.sink(whale.sinks.parquet("fast/"), id="out")
        print(topology.explain())
        whale.run(topology)

    Building a topology runs nothing and reads no row. Every operator has an id, by which messages,
    metrics and results name it. By default it is the method and a number: "filter-1".

    Args:
        name: the name of the job; letters, digits, '-', '_' and '.'.
        transport: a `whale.transports.Transport` of your own, for all rows that are sent from one
            process to another; `Stream.via` sets one for a single stream.

    Raises:
        TopologyError: the name is not valid, or `transport` is not a transport.
    """

    def __init__(self, name: str, *, transport: Transport | None = None) -> None:
        check_name(name, "topology name")
        if transport is not None:
            check_transport(f"topology {name!r}: transport=", transport)
        self._registry = Registry(name, transport)

    if not TYPE_CHECKING:  # hidden from type checkers, which then report a missing attribute

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(misuse.on_topology(name))

    @property
    def name(self) -> str:
        """The name of the topology."""
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
        on_late: LatePolicy = "fail",
        on_bad_rows: OnBadRows = "fail",
        idle_after_ms: float | None = None,
        max_ahead_ms: float | None = MAX_AHEAD_MS,
        parallelism: int | None = None,
    ) -> Stream:
        """Add a source, which reads an input.

        Args:
            source: one of `whale.sources`.
            id: the id of the operator; by default "source-1", "source-2" and so on.
            event_time: the column with the event time of each row.
            event_time_unit: "s", "ms", "us" or "ns", if that column holds integers.
            max_out_of_order_ms: by how many milliseconds a row may be earlier than a row read
                before it.
            on_late: for rows that are earlier than that: "fail" the job, "drop" them, or "pass"
                them on to operators that take late rows; they are counted in any case.
            on_bad_rows: for rows that cannot be read or have no event time: "fail" or "drop".
            idle_after_ms: after how many milliseconds without a row an instance of the source no
                longer holds the watermark back; by default it always does. Its rows that the
                watermark has passed meanwhile are late ones.
            max_ahead_ms: by how many milliseconds the event time of a row may be ahead of the clock
                of its worker, by default a day: one row of the year 2999 would make all others
                late. A row further ahead is a bad row. None: any time.
            parallelism: the number of instances that share the input; by default 1, which keeps the
                order of the input.

        Raises:
            TopologyError: an argument is not valid; the message says how to correct it.
            InputError: the input is missing, or lacks a column.
        """
        operator_id = self._registry.choose_id("source", id)
        check_source(operator_id, source)
        check_choice(operator_id, "on_late", on_late, _LATE_POLICIES)
        check_choice(operator_id, "on_bad_rows", on_bad_rows, _POLICIES)
        source = source.with_bad_rows(on_bad_rows)
        source.check()
        known = columns_of(source.schema())
        assigned = event_time_of(
            operator_id,
            event_time,
            known,
            event_time_unit=event_time_unit,
            max_out_of_order_ms=max_out_of_order_ms,
            on_late=on_late,
            on_bad_rows=on_bad_rows,
            idle_after_ms=idle_after_ms,
            max_ahead_ms=max_ahead_ms,
        )
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
        """Return the operators added so far, checked as a whole.

        Raises:
            TopologyError: there is no source or no sink, or the output of an operator is not used.
        """
        return self._registry.logical_plan()

    def to_tspec(self) -> str:
        """Return the topology as a `tspec` file (YAML), which `run`, `explain`, `optimize` take.

        Operators are written by import path, with plain arguments, filters as text.

        Raises:
            TopologyError: as `logical_plan`.
            UsageError: an operator is of a kind that such files lack, or cannot be imported.
        """
        from ...tspec.exporting import spec_of
        from ...tspec.writing import tspec_to_yaml

        return tspec_to_yaml(spec_of(self.logical_plan()))

    def explain(
        self,
        workers: int | None = None,
        settings: Settings | Mapping[str, object] | None = None,
        *,
        on: Literal["ray"] | None = None,
        address: str | None = None,
    ) -> Explanation:
        """Return the logical and the physical plan, with all rings and their memory.

        It starts nothing. `print` the result, or make it the last expression of a notebook cell.

        Args:
            workers: the number of workers; by default as in the settings, else one per core.
            settings: as for `run`; by default those of the environment.
            on: "ray" also shows on which node of the Ray cluster that `submit` would join each
                worker would run, which resources it would reserve there, and which are free.
            address: the address of that cluster, as for `submit`.

        Raises:
            UsageError: `on` is not "ray", or the address is not valid.
            ResourceError: no Ray answers there, or it lacks resources that operators request.
            TopologyError: as `logical_plan`, or the parallelism of an operator exceeds the number
                of virtual nodes.
            SettingsError: the environment has an invalid setting, or there are too many workers.
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
