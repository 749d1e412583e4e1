"""The emitter of `kernels.user_functions`: a call of the user's function in the loop.

Unlike all else in a loop, the user's code may fail, or not end, for values that no row holds. So it
is called only for rows that have passed all filters so far, and where no argument is null.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..kernels.user_functions import argument_type, result_kind
from .code import Code, LoopWriter, both, constructor_of

if TYPE_CHECKING:
    from ..compiled_function import CompiledFunction

__all__ = ["call"]


def call(loop: LoopWriter, *arguments: Any) -> Code:
    """Call a function where no argument is null; arguments: values, function."""
    *values, function = arguments
    made: CompiledFunction = function
    types = tuple(argument_type(made, value.kind) for value in values)
    kind = result_kind(made, types)
    given = ", ".join(f"{constructor_of(value.kind)}({value.value})" for value in values)
    called = f"{constructor_of(kind)}({loop.function(made)}({given}))"
    valid = both(*(value.valid for value in values))
    if due := both(loop.passing, valid):
        called = f"{called} if {due} else {constructor_of(kind)}(0)"
    return Code(loop.let(called), None if valid is None else loop.let(valid), kind)
