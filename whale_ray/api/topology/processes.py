"""Checks of the arguments of `process` and `connect`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import NoneType
from typing import Any, get_args

from ...operators.arguments import accepts
from ...operators.groupings import All, Key
from ...operators.keyed.keyed_process import Keyed
from ...operators.process import (
    CoProcess,
    InputOrder,
    Process,
    gives_rows,
    instead_of_returning,
)
from ...plan.columns import schemas_of_process
from ...plan.logical import RIGHT, Input, OperatorKind, OperatorNode
from ...plan.requests import CPU, GPU, ResourceRequest
from ...transport.wire.types import Schema
from .checks import check_bool, check_choice, describe_value, mistake, name_of
from .known import as_known_schema, columns_of, kind_of_key
from .locations import caller_location
from .registry import Registry

_CALLED = (
    *("open", "on_batch", "on_row", "on_left", "on_right", "on_left_row", "on_right_row"),
    *("on_merged", "on_watermark", "on_deadline", "on_timer", "close"),
)
"""The methods of a process that a worker calls; their return values are not used."""

_A_SCHEMA = "whale.Schema.of(id='int64', name='string')"

Factory = Callable[[], Process | CoProcess]
ProcessKind = type[Process] | type[CoProcess] | Process | CoProcess
"""A class of operators or an object of it: both say how they are to be run."""


@dataclass(frozen=True)
class WantedResources:
    """The arguments for Ray's resources of each instance, as the user passed them."""

    num_cpus: object
    num_gpus: object
    resources: object


def request_of(operator_id: str, wanted: WantedResources) -> ResourceRequest | None:
    """Return the resources that each instance requests of Ray; None if the user set none.

    Raises:
        TopologyError: an amount is not a number or is negative, or CPU or GPU is in `resources`.
    """
    amounts: dict[str, float] = {}
    for name, parameter, given in (
        (CPU, "num_cpus", wanted.num_cpus),
        (GPU, "num_gpus", wanted.num_gpus),
    ):
        if given is not None:
            amounts[name] = _amount(operator_id, parameter, given)
    if wanted.resources is not None:
        if not isinstance(wanted.resources, Mapping):
            raise mistake(
                operator_id,
                f"resources is {describe_value(wanted.resources)}: pass a mapping of names and"
                " amounts, such as {'scanner': 1}",
            )
        for name, given in wanted.resources.items():
            if name in (CPU, GPU) or not isinstance(name, str) or not name:
                raise mistake(
                    operator_id,
                    f"resources has {name!r}: pass Ray's custom resources by name, and num_cpus= or"
                    " num_gpus= for CPU and GPU",
                )
            amounts[name] = _amount(operator_id, f"resources[{name!r}]", given)
    return ResourceRequest(tuple(amounts.items())) if amounts else None


def _amount(operator_id: str, parameter: str, given: object) -> float:
    is_number = isinstance(given, (int, float)) and not isinstance(given, bool)
    if not is_number or not 0 <= float(given) < float("inf"):  # type: ignore[arg-type] # just seen
        raise mistake(
            operator_id, f"{parameter} is {describe_value(given)}: pass a number from 0 on"
        )
    return float(given)  # type: ignore[arg-type] # as above


def add_process(
    registry: Registry,
    inputs: tuple[Input, ...],
    operator: object,
    wanted_id: str | None,
    parallelism: int | None,
    event_time_order: bool | None,
    wanted: WantedResources,
) -> str:
    """Add a stateful operator with one or two inputs and return its id.

    Raises:
        TopologyError: `operator` is not a class or function of an operator with that number of
            inputs, or its rows cannot be put in event-time order.
    """
    operator_id = registry.choose_id("process", wanted_id)
    connected = len(inputs) == 2
    factory, kind = check_process(operator_id, operator, connected=connected)
    if event_time_order is not None:
        check_bool(operator_id, "event_time_order", event_time_order)
    _check_keyed(registry, operator_id, kind, inputs)
    if kind.input_order is not None:
        check_choice(operator_id, "input_order", kind.input_order, get_args(InputOrder))
    timed = [registry.node(feed.upstream).has_event_time for feed in inputs]
    some_timed = any(registry.some_event_time(feed.upstream) for feed in inputs)
    event_time_order, order_reason = _order_of(kind, event_time_order, some_timed)
    if event_time_order and not all(timed):
        untimed = registry.untimed_source(inputs[timed.index(False)].upstream)
        raise mistake(
            operator_id,
            f"rows cannot be put in event-time order, since source {untimed!r} has no event times:"
            " give it event_time='column', or pass event_time_order=False here",
        )
    outputs = _outputs_of(operator_id, kind)
    _check_columns(operator_id, kind, outputs)
    by_rows, state_reason = _state_of(operator_id, kind)
    if not kind.takes_late_rows:
        _refuse_late_rows(registry, operator_id, kind, inputs)
    node = OperatorNode(
        id=operator_id,
        kind=OperatorKind.CO_PROCESS if connected else OperatorKind.PROCESS,
        payload=factory,
        inputs=inputs,
        verb="process",
        parallelism=parallelism,
        has_event_time=all(timed),
        event_time_order=event_time_order,
        per_worker=bool(kind.per_worker),
        declared_state=tuple(kind.declared_state),
        keeps_rows=by_rows,
        state_reason=state_reason,
        outputs=outputs,
        late_outputs=_late_outputs_of(operator_id, kind, outputs),
        takes_late_rows=bool(kind.takes_late_rows),
        order_reason=order_reason,
        location=caller_location(),
        request=request_of(operator_id, wanted),
    )
    known = [as_known_schema(registry.columns(feed.source)) for feed in inputs]
    schemas = schemas_of_process(factory, tuple(known))
    registry.add(node, *(columns_of(schemas.get(name)) for name in node.outputs))
    return operator_id


def _check_keyed(
    registry: Registry, operator_id: str, kind: ProcessKind, inputs: tuple[Input, ...]
) -> None:
    """Refuse a process with state by key whose rows have no key, or keys of two types.

    Raises:
        TopologyError: an input is grouped otherwise; the second of two may be broadcast.
    """
    made_class = kind if isinstance(kind, type) else type(kind)
    if not issubclass(made_class, Keyed):
        return
    for feed in inputs:
        grouping = feed.grouping
        if not isinstance(grouping, Key) and not (feed.port == RIGHT and isinstance(grouping, All)):
            raise mistake(
                operator_id,
                f"{made_class.__name__} keeps state by key, and its rows are grouped otherwise"
                f" ({grouping.describe()}): group {feed.upstream!r} with key_by('column')",
            )
    keys = [feed.grouping.columns for feed in inputs if isinstance(feed.grouping, Key)]
    columns = [registry.columns(feed.source) or {} for feed in inputs]
    for names in zip(*keys, strict=True):  # one input, or two
        types = [of_input.get(name) for of_input, name in zip(columns, names, strict=False)]
        if None not in types and types[0] != types[-1]:
            raise mistake(
                operator_id,
                f"the state of a key is that of both inputs, but {names[0]!r} is {types[0]} in"
                f" {inputs[0].upstream!r} and {names[-1]!r} is {types[-1]} in"
                f" {inputs[-1].upstream!r}: cast one with with_column before key_by",
            )


def _outputs_of(operator_id: str, kind: ProcessKind) -> tuple[str, ...]:
    """Return the names of an operator's outputs.

    Raises:
        TopologyError: they are not different names.
    """
    outputs = kind.outputs
    is_names = isinstance(outputs, (tuple, list)) and all(
        isinstance(name, str) and name.isidentifier() for name in outputs
    )
    if not is_names or not outputs or len(set(outputs)) < len(outputs):
        raise mistake(
            operator_id,
            f"outputs is {outputs!r}: name each output once, the main one first, as in"
            " outputs = ('main', 'late')",
        )
    return tuple(outputs)


def _check_columns(operator_id: str, kind: ProcessKind, outputs: tuple[str, ...]) -> None:
    """Refuse declared columns that are no schema, or of no output: rows would show it, or nothing.

    Raises:
        TopologyError: `schema` or `schemas` is another value than the class may have.
    """
    columns, of_others = kind.schema, kind.schemas
    if not isinstance(of_others, (Mapping, property)):
        raise mistake(
            operator_id,
            f"schemas is {describe_value(of_others)}: it maps names of outputs to their columns, as"
            f" in schemas = {{{outputs[-1]!r}: {_A_SCHEMA}}}",
        )
    given = {} if isinstance(of_others, property) else dict(of_others)
    for name in given:
        if name not in outputs[1:]:
            named = ", ".join(map(repr, outputs[1:])) or "none"
            raise mistake(
                operator_id,
                f"schemas names {name!r}, which is none of its outputs beside the main one"
                f" ({named}): correct it, or add it to outputs",
            )
    for where, one in {
        "schema": columns,
        **{f"schemas[{n!r}]": s for n, s in given.items()},
    }.items():
        if not isinstance(one, (Schema, property, NoneType)):
            raise mistake(operator_id, f"{where} is {describe_value(one)}: write {_A_SCHEMA}")


def _late_outputs_of(
    operator_id: str, kind: ProcessKind, outputs: tuple[str, ...]
) -> tuple[str, ...]:
    """Return the names of the outputs that may carry late rows.

    Raises:
        TopologyError: one is none of the operator's outputs.
    """
    for name in kind.late_outputs:
        if name not in outputs:
            raise mistake(
                operator_id,
                f"late_outputs names {name!r}, which is none of its outputs ({', '.join(outputs)})",
            )
    return tuple(kind.late_outputs)


def _state_of(operator_id: str, kind: ProcessKind) -> tuple[bool, str]:
    """Return whether an operator keeps rows of a form of its own, and how its state moves.

    Raises:
        TopologyError: its class defines only one of `dump` and `load`.
    """
    made_class = kind if isinstance(kind, type) else type(kind)
    if kind.declared_state:
        return False, ""
    if issubclass(made_class, Keyed):
        return False, f"whole: {made_class.__name__} declares no state"
    dumps = gives_rows(kind)
    if dumps == (made_class.load in (Process.load, CoProcess.load)):
        there, lacking = ("dump", "load") if dumps else ("load", "dump")
        raise mistake(
            operator_id,
            f"{made_class.__name__} defines {there} and lacks {lacking}: state that is returned as"
            " rows must be taken back, and the other way round",
        )
    if dumps:
        return True, "by virtual node: dump and load"
    return False, f"whole: {made_class.__name__} has no dump and load"


def _order_of(kind: ProcessKind, wanted: bool | None, some_timed: bool) -> tuple[bool, str]:
    """Return whether an operator takes its rows by event time, and why or why not."""
    if wanted is not None:
        return wanted, f"event_time_order={wanted}"
    if kind.input_order == "arrival":
        return False, "it takes rows in any order"
    if kind.input_order == "event time":
        return True, "it needs them in order"
    if some_timed:
        return True, "the default for rows with event times"
    return False, "the rows have no event times"


def _refuse_late_rows(
    registry: Registry, operator_id: str, kind: ProcessKind, inputs: tuple[Input, ...]
) -> None:
    """Refuse streams with late rows for an operator that does not take such rows."""
    for feed in inputs:
        sender = registry.sender_of_late_rows(feed.source)
        if sender is None:
            continue
        made_class = kind if isinstance(kind, type) else type(kind)
        if sender.kind is OperatorKind.SOURCE:
            sends = f"source {sender.id!r} passes late rows on (on_late='pass')"
            instead = "or pass on_late='drop' to the source"
        else:
            sends = f"operator {sender.id!r} sends late rows on ({', '.join(sender.late_outputs)})"
            instead = "or read another of its outputs"
        raise mistake(
            operator_id,
            f"{sends}, and {made_class.__name__} does not take them: let it, with takes_late_rows ="
            f" True in the class, {instead}",
        )


def check_same_key(registry: Registry, left: Input, right: Input) -> None:
    """Refuse two keyed inputs whose keys can never be equal."""
    if not (isinstance(left.grouping, Key) and isinstance(right.grouping, Key)):
        return
    mine, theirs = left.grouping.columns, right.grouping.columns
    if len(mine) != len(theirs):
        raise mistake(
            left.upstream,
            f"connect brings equal keys together, but {left.upstream!r} is keyed by {len(mine)}"
            f" columns ({', '.join(mine)}) and {right.upstream!r} by {len(theirs)}"
            f" ({', '.join(theirs)}): key both by as many",
        )
    own = registry.columns(left.source) or {}
    other = registry.columns(right.source) or {}
    for name, other_name in zip(mine, theirs, strict=True):
        one, two = own.get(name), other.get(other_name)
        if one is not None and two is not None and kind_of_key(one) != kind_of_key(two):
            raise mistake(
                left.upstream,
                f"connect brings equal keys together, but {name!r} is {one.name} and"
                f" {other_name!r} is {two.name}, which are never equal: cast one with with_column"
                " before key_by",
            )


def check_process(
    operator_id: str, operator: object, *, connected: bool
) -> tuple[Factory, ProcessKind]:
    """Return the factory of an operator's instances, and their class or one of them.

    A factory that is neither a class nor a `functools.partial` of one is called once, to check the
    object that it returns. Expensive set-up therefore belongs into `open`.

    Args:
        operator_id: the operator's id.
        operator: the user's argument.
        connected: whether the operator has two inputs.

    Raises:
        TopologyError: it does not return an operator with that number of inputs.
    """
    if isinstance(operator, (Process, CoProcess)):
        name = type(operator).__name__
        raise mistake(
            operator_id,
            f"process takes the class, not an object of it, since every instance needs its own:"
            f" pass {name}, or lambda: {name}(…)",
        )
    if not callable(operator):
        raise mistake(
            operator_id,
            f"process takes a class derived from {_wanted(connected)}, not"
            f" {describe_value(operator)}",
        )
    made_class = operator.func if isinstance(operator, functools.partial) else operator
    if isinstance(made_class, type):
        _check_class(operator_id, made_class, connected=connected)
        _check_no_arguments(operator_id, operator)
        return operator, made_class
    _check_no_arguments(operator_id, operator)
    made = _call_once(operator_id, operator)
    if isinstance(made, type) or not isinstance(made, (Process, CoProcess)):
        raise mistake(
            operator_id,
            f"{name_of(operator)}() returns {describe_value(made)}: it must return an object of a"
            f" class derived from {_wanted(connected)}",
        )
    _check_class(operator_id, type(made), connected=connected)
    return operator, made


def _wanted(connected: bool) -> str:
    return "whale.CoProcess" if connected else "whale.Process"


def _check_class(operator_id: str, made_class: type, *, connected: bool) -> None:
    name = made_class.__name__
    if not issubclass(made_class, (Process, CoProcess)):
        raise mistake(
            operator_id, f"{name} is not derived from {_wanted(connected)}: derive it from that"
        )
    if connected and issubclass(made_class, Process):
        raise mistake(
            operator_id,
            f"{name} is a whale.Process, but two streams are connected: derive it from"
            " whale.CoProcess and define on_left and on_right",
        )
    if not connected and issubclass(made_class, CoProcess):
        raise mistake(
            operator_id,
            f"{name} is a whale.CoProcess, which takes two streams: .connect(…) the other one"
            " first, or derive it from whale.Process",
        )
    missing = made_class.missing()
    if missing:
        raise mistake(operator_id, f"{name} does not define {missing}")
    for method in _CALLED:
        _check_called(operator_id, made_class, method)


def _check_called(operator_id: str, made_class: type, method: str) -> None:
    """Refuse a generator or coroutine function: calling it would not run its body."""
    function = getattr(made_class, method, None)
    if inspect.isgeneratorfunction(function):
        wrong = "contains yield"
    elif inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        wrong = "is an async function"
    else:
        return
    raise mistake(
        operator_id,
        f"{made_class.__name__}.{method} {wrong}, so calling it would run none of it: write it with"
        f" def; {instead_of_returning(method)}",
    )


def _check_no_arguments(operator_id: str, factory: Callable[..., Any]) -> None:
    if accepts(factory, 0):
        return
    name = name_of(factory)
    if isinstance(factory, type):
        fix = f"pass lambda: {name}(…) with its arguments"
    elif "batch" in _parameters(factory) or "row" in _parameters(factory):
        fix = "for a function of rows or columns use map, filter or flat_map"
    else:
        fix = "every instance is made by calling it without any"
    raise mistake(operator_id, f"{name} needs arguments: {fix}")


def _parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    return tuple(inspect.signature(function).parameters)


def _call_once(operator_id: str, factory: Callable[..., Any]) -> object:
    try:
        return factory()
    except Exception as error:
        raise mistake(
            operator_id, f"{name_of(factory)}() raised {type(error).__name__}: {error}"
        ) from error
