"""Lets a function whose types are declared be compiled, or loaded, when it is first used.

numba compiles a function with a declared signature where it is defined, so a process would compile
all functions of the modules that it loads, some hundred, of which a job calls a third. Deferred,
the first call from Python does it, or the first compiled function that calls it. Then as before: no
other types are accepted, and values that can be converted are.

numba asks two methods of a dispatcher for that: `_compile_for_args` if a call finds nothing
compiled, and `get_call_template` if another function calls it. Both are the same in numba 0.61 to
0.68.
"""

from __future__ import annotations

import os
from typing import Any, Final

from numba.core.compiler_lock import global_compiler_lock

__all__ = ["COMPILE_AT_IMPORT_VARIABLE", "compile_when_used", "entry_point"]

COMPILE_AT_IMPORT_VARIABLE: Final = "WHALE_RAY_COMPILE_AT_IMPORT"
"""If it is set, nothing is deferred: importing a module fills the cache for another machine."""


def compile_when_used(dispatcher: Any, signature: object) -> None:
    """Let a dispatcher of numba's compile this signature when it is first used, and no other."""
    template_of = dispatcher.get_call_template

    def compile_now() -> None:
        with global_compiler_lock:  # two threads may come at once
            if not dispatcher.overloads:
                dispatcher.compile(signature)
                dispatcher.disable_compile()

    def compile_for_call(*arguments: Any, **named: Any) -> Any:
        """Return what is called with the arguments next; raise TypeError if they do not fit."""
        compile_now()
        wanted = dispatcher.nopython_signatures[0].args
        context = dispatcher.typingctx
        given = [dispatcher.typeof_pyval(argument) for argument in arguments]
        if (
            named
            or len(given) != len(wanted)
            or not all(
                context.can_convert(have, want) is not None
                for have, want in zip(given, wanted, strict=True)
            )
        ):
            dispatcher._explain_matching_error(*arguments, **named)
        return _only(dispatcher)

    def template_for_caller(arguments: Any, named: Any) -> Any:
        compile_now()
        return template_of(arguments, named)

    dispatcher._compile_for_args = compile_for_call
    dispatcher.get_call_template = template_for_caller
    dispatcher.compile_now = compile_now
    if COMPILE_AT_IMPORT_VARIABLE in os.environ:
        compile_now()


def entry_point(dispatcher: Any) -> Any:
    """Return what Python calls of a function with a declared signature, compiled if it is not."""
    dispatcher.compile_now()
    return _only(dispatcher)


def _only(dispatcher: Any) -> Any:
    (compiled,) = dispatcher.overloads.values()
    return compiled.entry_point
