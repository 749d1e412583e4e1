"""The operators of one topology while it is built, with their ids and known columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...configs.errors import TopologyError
from ...operators.groupings import Global
from ...plan.lateness import sender_of_late_rows
from ...plan.logical import MAIN, LogicalPlan, OperatorKind, OperatorNode, OutputKey
from .checks import check_name, check_parallelism, mistake

if TYPE_CHECKING:
    from ...transport.custom.operators import Transport
    from .known import KnownColumns

OPERATORS_MAX = 10_000
"""Operators of one topology; more are probably added by an endless loop."""


class Registry:
    """The operators that a topology and its streams share."""

    def __init__(self, name: str, transport: Transport | None) -> None:
        self.name = name
        self.transport = transport
        self._nodes: dict[str, OperatorNode] = {}
        self._columns: dict[OutputKey, KnownColumns | None] = {}
        self._transports: list[tuple[str, Transport, str]] = []

    def choose_id(self, verb: str, wanted: str | None) -> str:
        """Return the id of the next operator: as wanted, else the method and its number.

        "map-2" is the second operator that `map` adds: the same program results in the same ids
        each time. Only an id that the user sets is stable when the program changes.
        """
        if wanted is not None:
            self._check_free(check_name(wanted, "operator id"))
            return wanted
        verb = verb.replace("_", "-")
        number = 1 + sum(node.verb.replace("_", "-") == verb for node in self._nodes.values())
        while f"{verb}-{number}" in self._nodes:
            number += 1
        return f"{verb}-{number}"

    def _check_free(self, operator_id: str) -> None:
        taken = self._nodes.get(operator_id)
        if taken is None:
            return
        raise mistake(
            operator_id,
            f"the id is taken ({taken.verb} at {taken.location}): give each operator its own id="
            + (
                ", and in a notebook make the Topology anew in the cell that builds it"
                if taken.location.startswith("cell:")
                else ""
            ),
        )

    def add(self, node: OperatorNode, *columns: KnownColumns | None) -> None:
        """Add an operator whose inputs are in the registry already.

        Args:
            node: the operator; its id is free.
            columns: the columns of each of its outputs, as far as they are known.

        Raises:
            TopologyError: its parallelism is not possible, or there are too many operators. The
                operator is then not added.
        """
        check_parallelism(node.id, node.parallelism)
        single = any(isinstance(feed.grouping, Global) for feed in node.inputs)
        if single and node.parallelism not in (None, 1):
            one, fix = "global_() sends every row to", "group by key_by, shuffle or broadcast"
            if node.verb in ("agg", "top_n"):
                one, fix = "without a column, group_by sends every row to", "name one"
            raise mistake(
                node.id,
                f"{one} one instance, but parallelism is {node.parallelism}: leave parallelism out,"
                f" or {fix}",
            )
        if len(self._nodes) >= OPERATORS_MAX:
            raise mistake(node.id, f"topology {self.name!r} has {OPERATORS_MAX} operators already")
        self._nodes[node.id] = node
        self._columns.update(zip(node.output_keys, columns, strict=True))

    def note_transport(self, upstream: str, transport: Transport, location: str) -> None:
        """Record that the user set a transport for a stream of an operator."""
        self._transports.append((upstream, transport, location))

    @property
    def nodes(self) -> tuple[OperatorNode, ...]:
        """The operators added so far, each after its inputs."""
        return tuple(self._nodes.values())

    def node(self, operator_id: str) -> OperatorNode:
        """Return the operator of that id."""
        return self._nodes[operator_id]

    def columns(self, key: OutputKey) -> KnownColumns | None:
        """Return the columns of an output, as far as they are known."""
        return self._columns[key]

    def output_name(self, key: OutputKey) -> str:
        """Return the name of an output in messages: "counts", "counts.late"."""
        return self.plan_so_far.output_name(key)

    @property
    def plan_so_far(self) -> LogicalPlan:
        """The operators so far, as a plan that is not complete."""
        return LogicalPlan(self.name, self.nodes)

    def some_event_time(self, operator_id: str) -> bool:
        """Return whether an operator's rows, or (after a union) some of them, have event times."""
        waiting = [operator_id]
        while waiting:
            node = self._nodes[waiting.pop()]
            if node.has_event_time:
                return True
            if not node.kind.is_stateful:
                waiting += [feed.upstream for feed in node.stream_inputs]
        return False

    def sender_of_late_rows(self, key: OutputKey) -> OperatorNode | None:
        """Return an operator that knowingly sends late rows on to an output; None if none does."""
        return sender_of_late_rows(self.plan_so_far, key)

    def untimed_source(self, operator_id: str) -> str:
        """Return the id of a source without event times that feeds an operator."""
        node = self._nodes[operator_id]
        while node.inputs:
            feeding = [self._nodes[feed.upstream] for feed in node.stream_inputs]
            node = next(upstream for upstream in feeding if not upstream.has_event_time)
        return node.id

    def logical_plan(self) -> LogicalPlan:
        """Return the operators as a plan.

        Raises:
            TopologyError: there is no source or no sink, or the output of an operator or a
                transport is not used.
        """
        nodes = self.nodes
        if not nodes:
            msg = f"topology {self.name!r} is empty: begin with .source(whale.sources.…)"
            raise TopologyError(msg)
        if not any(node.kind is OperatorKind.SINK for node in nodes):
            msg = (
                f"topology {self.name!r} has no sink, so nothing would come of it: end a stream"
                " with .sink(whale.sinks.…)"
            )
            raise TopologyError(msg)
        read = {feed.source for node in nodes for feed in node.inputs}
        for node in nodes:
            if node.kind is not OperatorKind.SINK and (node.id, MAIN) not in read:
                raise mistake(
                    node.id,
                    f"nothing reads its output ({node.verb} at {node.location}): end it with"
                    " .sink(whale.sinks.…), or remove it",
                )
        used = {(feed.upstream, id(feed.transport)) for node in nodes for feed in node.inputs}
        self._check_transports(used)
        return self.plan_so_far

    def _check_transports(self, used: set[tuple[str, int]]) -> None:
        for upstream, transport, location in self._transports:
            if (upstream, id(transport)) not in used:
                raise mistake(
                    upstream,
                    f"via at {location} has no effect: it changes no stream but returns a new one,"
                    " which no operator reads; use that one, or remove the call",
                )
