"""The operators of one topology while it is built: ids, order, what is known of their columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...configs.errors import TopologyError
from ...operators.groupings import Global
from ...plan.logical import LogicalPlan, OperatorKind, OperatorNode
from .checks import check_name, check_parallelism, mistake

if TYPE_CHECKING:
    from ...transport.custom.operators import Transport
    from .known import KnownColumns

OPERATORS_MAX = 10_000
"""Operators of one topology; more come from a loop that does not end."""


class Registry:
    """What a topology and its streams share. An operator is added whole or not at all."""

    def __init__(self, name: str, transport: Transport | None = None) -> None:
        self.name = name
        self.transport = transport
        self._nodes: dict[str, OperatorNode] = {}
        self._columns: dict[str, KnownColumns | None] = {}
        self._carried: list[tuple[str, Transport, str]] = []

    def choose_id(self, verb: str, wanted: str | None) -> str:
        """Return the id of the next operator: as wanted, else the verb and its number.

        "map-2" is the second operator of the topology that `map` makes: the same program gives the
        same ids each time. An operator whose id must outlive changes of the program needs its own.
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

    def add(self, node: OperatorNode, columns: KnownColumns | None) -> None:
        """Add an operator whose inputs are in the registry already.

        Args:
            node: the operator; its id is free.
            columns: what is known of the columns of its output.
        """
        check_parallelism(node.id, node.parallelism)
        single = any(isinstance(feed.grouping, Global) for feed in node.inputs)
        if single and node.parallelism not in (None, 1):
            raise mistake(
                node.id,
                f"global_() sends every row to one instance, but parallelism is {node.parallelism}:"
                " leave parallelism out, or group by key_by, shuffle or broadcast",
            )
        if len(self._nodes) >= OPERATORS_MAX:
            raise mistake(node.id, f"topology {self.name!r} has {OPERATORS_MAX} operators already")
        self._nodes[node.id] = node
        self._columns[node.id] = columns

    def note_transport(self, upstream: str, transport: Transport, location: str) -> None:
        """Remember that a stream of an operator was given a transport of its own."""
        self._carried.append((upstream, transport, location))

    @property
    def nodes(self) -> tuple[OperatorNode, ...]:
        """The operators so far, each after its inputs."""
        return tuple(self._nodes.values())

    def node(self, operator_id: str) -> OperatorNode:
        """Return an operator that was added."""
        return self._nodes[operator_id]

    def columns(self, operator_id: str) -> KnownColumns | None:
        """Return what is known of the columns of an operator's output."""
        return self._columns[operator_id]

    def some_event_time(self, operator_id: str) -> bool:
        """Tell whether an operator's rows, or (behind a union) some of them, have event times."""
        waiting = [operator_id]
        while waiting:
            node = self._nodes[waiting.pop()]
            if node.has_event_time:
                return True
            if not node.kind.is_stateful:
                waiting += [feed.upstream for feed in node.inputs]
        return False

    def untimed_source(self, operator_id: str) -> str:
        """Return the id of a source without event times that feeds an operator."""
        node = self._nodes[operator_id]
        while node.inputs:
            feeding = [self._nodes[feed.upstream] for feed in node.inputs]
            node = next(upstream for upstream in feeding if not upstream.has_event_time)
        return node.id

    def logical_plan(self) -> LogicalPlan:
        """Return the operators as a plan.

        Raises:
            TopologyError: there is no source or no sink, or an operator that leads to none, or a
                transport that carries nothing.
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
        read = {feed.upstream for node in nodes for feed in node.inputs}
        for node in nodes:
            if node.kind is not OperatorKind.SINK and node.id not in read:
                raise mistake(
                    node.id,
                    f"nothing reads its output ({node.verb} at {node.location}): end it with"
                    " .sink(whale.sinks.…), or remove it",
                )
        self._check_carried({(f.upstream, id(f.transport)) for node in nodes for f in node.inputs})
        return LogicalPlan(self.name, nodes)

    def _check_carried(self, used: set[tuple[str, int]]) -> None:
        for upstream, transport, location in self._carried:
            if (upstream, id(transport)) not in used:
                raise mistake(
                    upstream,
                    f"via at {location} carries nothing: it changes no stream but returns one, and"
                    " nothing reads that; read it, or remove the call",
                )
