"""Checks of the arguments of `drop_duplicates`, and the operator that it adds."""

from __future__ import annotations

from dataclasses import replace

from ...configs.errors import InputError
from ...operators.groupings import Key
from ...operators.joins.deduplication import Deduplication
from ...operators.windows.durations import duration_ns
from ...operators.windows.grouping import LATE, OUTPUTS
from ...plan.logical import Input, OperatorKind, OperatorNode
from .checks import describe_value, mistake
from .known import check_columns
from .locations import caller_location
from .registry import Registry


def add_drop_duplicates(
    registry: Registry,
    stream: Input,
    columns: tuple[object, ...],
    within: object,
    wanted_id: str | None,
    parallelism: int | None,
) -> str:
    """Add a de-duplication and return its id; for the arguments see `Stream.drop_duplicates`.

    Raises:
        TopologyError: an argument is not valid; the message says how to correct it.
    """
    operator_id = registry.choose_id("drop_duplicates", wanted_id)
    known = registry.columns(stream.source)
    keys = _keys(operator_id, columns or tuple(known or ()))
    check_columns(operator_id, "drop_duplicates", keys, known)
    if not registry.node(stream.upstream).has_event_time:
        source = registry.untimed_source(stream.upstream)
        raise mistake(
            operator_id,
            f"drop_duplicates needs event times, which source {source!r} does not give: pass it"
            " event_time='column'",
        )
    node = OperatorNode(
        id=operator_id,
        kind=OperatorKind.PROCESS,
        payload=Deduplication(keys, _within(operator_id, within)),
        inputs=(replace(stream, grouping=Key(keys), on_null_key="keep"),),
        verb="drop_duplicates",
        parallelism=parallelism,
        has_event_time=True,
        per_worker=True,
        declared_state=("time",),
        outputs=OUTPUTS,
        late_outputs=(LATE,),
        takes_late_rows=True,
        order_reason="the first row to come counts",
        location=caller_location(),
    )
    registry.add(node, known, known)
    return operator_id


def _keys(operator_id: str, columns: tuple[object, ...]) -> tuple[str, ...]:
    names = []
    for name in columns:
        if not isinstance(name, str):
            raise mistake(
                operator_id,
                f"drop_duplicates takes names of columns, not {describe_value(name)}:"
                " drop_duplicates('auction', 'bidder', within='10 minutes')",
            )
        if name in names:
            raise mistake(operator_id, f"drop_duplicates names column {name!r} twice: name it once")
        names.append(name)
    if not names:
        raise mistake(
            operator_id,
            "the columns of the stream are not known: name those in which duplicates are equal",
        )
    return tuple(names)


def _within(operator_id: str, given: object) -> int:
    try:
        found = duration_ns(given, "within")
    except InputError as error:
        raise mistake(operator_id, str(error)) from None
    if found <= 0:
        raise mistake(operator_id, f"within is {given!r}: it must be longer than nothing")
    return found
