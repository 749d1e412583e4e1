"""Late rows in a topology: which streams may carry them, and who says what becomes of them.

Three kinds of rows lie behind the watermark of the operator that reads them: those that a source or
an operator sends on knowingly, those of a source that was idle while the watermark went on, and, in
a restored job, those of a source that is new.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import TYPE_CHECKING

from ..operators.sources.base import Source
from .logical import LogicalPlan, OperatorKind, OperatorNode, OutputKey

if TYPE_CHECKING:
    from ..operators.event_time import EventTime, LatePolicy

_STRICTEST_FIRST: tuple[LatePolicy, ...] = ("fail", "drop", "pass")


def sender_of_late_rows(logical: LogicalPlan, output: OutputKey) -> OperatorNode | None:
    """Return an operator that may send late rows on to an output, knowingly; None if none does.

    That is a source with `on_late="pass"`, or a process that names the output in `late_outputs`.
    """
    operator_id, number = output
    node = logical.node(operator_id)
    if node.kind is OperatorKind.SOURCE:
        passes = node.event_time is not None and node.event_time.on_late == "pass"
        return node if passes else None
    if node.kind.is_stateful:
        return node if node.outputs[number] in node.late_outputs else None
    senders = (sender_of_late_rows(logical, feed.source) for feed in node.stream_inputs)
    return next((sender for sender in senders if sender is not None), None)


def policy_after_idleness(logical: LogicalPlan, output: OutputKey) -> LatePolicy | None:
    """Return what becomes of an output's rows that the watermark has passed while it was idle.

    It is the strictest of those of the upstream sources that may be idle; None if none may be.
    Where the output carries late rows in any case, they are passed on.
    """
    return _strictest(
        logical,
        output,
        {
            event_time.on_late
            for source, event_time in _timed_sources(logical, output)
            if _may_be_idle(source, event_time)
        },
    )


def policy_after_restore(logical: LogicalPlan, output: OutputKey) -> LatePolicy | None:
    """Return what becomes of an output's rows that a restored job's watermark has passed.

    It is as `policy_after_idleness`, of all upstream sources, any of which may be new.
    """
    policies = {event_time.on_late for _, event_time in _timed_sources(logical, output)}
    return _strictest(logical, output, policies)


def _timed_sources(
    logical: LogicalPlan, output: OutputKey
) -> Iterator[tuple[OperatorNode, EventTime]]:
    """Yield the sources upstream of an output that have event times."""
    for source in map(logical.node, logical.sources_of(output[0])):
        if source.event_time is not None:
            yield source, source.event_time


def _strictest(
    logical: LogicalPlan, output: OutputKey, policies: Set[LatePolicy]
) -> LatePolicy | None:
    if not policies:
        return None
    if sender_of_late_rows(logical, output) is not None:
        return "pass"
    return next(policy for policy in _STRICTEST_FIRST if policy in policies)


def _may_be_idle(node: OperatorNode, event_time: EventTime) -> bool:
    """Whether an instance of a source may be idle: always if it may have no split to read."""
    if event_time.idle_after_ms is not None:
        return True
    return isinstance(node.payload, Source) and node.payload.has_splits
