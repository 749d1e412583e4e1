"""`CompiledFunction`: a user's function of values, compiled by numba, as part of an expression.

It is called for every row whose arguments are all there; where one is null, so is the result. In a
compiled loop it is one of its steps; elsewhere a loop over whole columns calls it, with the same
machine code and the same result.
"""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable, Iterator, Mapping
from types import CodeType, ModuleType
from typing import Any

from ...configs.errors import ExpressionError, TopologyError
from .expression import Expression, FunctionCall, col, lit
from .function_parts import as_function, codes, fingerprint_of, is_dispatcher, outer_values

__all__ = ["CompiledFunction", "first_reason"]

_COMPILED_AS = "with integers that wrap and places in arrays that are checked,"
"""How functions are compiled, as far as it changes what they compute."""
_INPUT_OUTPUT = ("print", "input", "open", "exec", "eval")
_CHANGING_MODULES = ("random", "numpy.random", "time", "datetime", "os", "sys", "secrets")
"""What they return depends on more than their arguments."""

_WRITES = {
    "STORE_GLOBAL": "changes the global",
    "DELETE_GLOBAL": "deletes the global",
    "STORE_DEREF": "changes the outer variable",
}


class CompiledFunction:
    """A function of values; called with columns, by name or expression, it is an expression.

    Args:
        function: takes as many positional arguments as it has columns, and returns one value;
            plain, or one of `numba.njit`, which is called as it is, with its options.

    Attributes:
        function: the plain function.
        own_dispatcher: what the user had numba make of it; None if it came plain.

    Raises:
        TopologyError: it has other arguments, or does something besides computing its result.
    """

    is_compiled = True

    def __init__(self, function: Any) -> None:
        self.__name__ = getattr(function, "__name__", type(function).__name__)
        self.__doc__ = function.__doc__
        self.own_dispatcher = function if is_dispatcher(function) else None
        if self.own_dispatcher is not None:
            self._check_options(function.targetoptions)
            function = function.py_func
        if not inspect.isfunction(function):
            msg = f"whale.compiled takes a plain function or one of numba.njit, not {self.__name__}"
            raise TopologyError(msg)
        self.function = function
        kinds = {one.kind for one in inspect.signature(function).parameters.values()}
        if not kinds or not kinds <= {
            inspect.Parameter.POSITIONAL_ONLY,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
        }:
            self._refuse("takes other arguments than one value each: name them one by one")
        if found := next(_side_effects(function, set()), ""):
            self._refuse(
                f"{found}: a compiled function only computes its result from its arguments, since"
                " how often it is called, and where, is not defined"
            )
        self._arity = len(inspect.signature(function).parameters)
        self._dispatcher: Any = self.own_dispatcher
        self._compiled_of: str | None = None
        self._loop: Any = None
        self._forget_if_changed()

    def __call__(self, *columns: Expression | str | float) -> Expression:
        """Return the expression that calls it with these columns; numbers are constants.

        Raises:
            ExpressionError: they are more or fewer than its arguments.
        """
        if len(columns) != self._arity:
            msg = f"{self.__name__} takes {self._arity} columns, not {len(columns)}"
            raise ExpressionError(msg)
        self._forget_if_changed()
        arguments = tuple(col(one) if isinstance(one, str) else lit(one) for one in columns)
        places = ", ".join(f"{{{at}}}" for at in range(len(arguments)))
        return FunctionCall("user_functions.call", arguments, (self,), f"{self.__name__}({places})")

    def __reduce__(self) -> tuple[Any, ...]:
        """Go to another process as the function alone, which is compiled there."""
        own = self.own_dispatcher
        return CompiledFunction, (self.function if own is None else own,)

    @property
    def py_func(self) -> Callable[..., Any]:
        """Return the plain function, by the name that it has in those of numba."""
        return self.function

    @property
    def dispatcher(self) -> Any:
        """What numba calls, made when first asked for; like columns, it wraps and divides by zero.

        A place beyond an array raises: what is there may be anything, or end the process. The
        user's own, if there is one, keeps its options, and raises if these do not say else.
        """
        if self._dispatcher is None:
            from ...transport.compiling import njit
            from ...transport.wrapping_integers import WrappingCompiler

            self._compiled_of = fingerprint_of(self.function)
            self._dispatcher = njit(
                nogil=True,
                error_model="numpy",
                boundscheck=True,
                pipeline_class=WrappingCompiler,
            )(self.function)
        return self._dispatcher

    @property
    def _numba_type_(self) -> Any:
        """Return what numba takes it for in another compiled function, which may call it."""
        from numba.core import types

        self._forget_if_changed()
        return types.Dispatcher(self.dispatcher)

    @property
    def loop(self) -> Any:
        """The loop `loop(valid, results, *columns)` that calls it for every row that is valid.

        It is kept as long as the function, and compiled for each combination of types once.
        """
        if self._loop is None:
            from ...transport.compiling import njit

            names = [f"a{at}" for at in range(self._arity)]
            values = ", ".join(f"{name}[i]" for name in names)
            text = (
                f"def loop(valid, results, {', '.join(names)}):\n"
                "    for i in range(len(results)):\n"
                "        if valid[i]:\n"
                f"            results[i] = function({values})\n"
            )
            namespace = {"function": self.dispatcher, "__name__": __name__}
            exec(text, namespace)  # noqa: S102 - made here
            self._loop = njit(nogil=True, error_model="numpy")(namespace["loop"])
        return self._loop

    def result_type(self, arguments: tuple[Any, ...]) -> Any:
        """Return numba's type of the result for arguments of these types of numba's.

        Raises:
            ExpressionError: numba cannot compile it for them; the message says why.
        """
        from numba.core import types
        from numba.core.errors import NumbaError

        kinds = ", ".join(map(str, arguments))
        dispatcher = self.dispatcher
        try:
            signature = types.Dispatcher(dispatcher).get_call_type(
                dispatcher.typingctx, arguments, {}
            )
        except NumbaError as error:
            reason = first_reason(str(error))
            outer = outer_values(self.function)
            plain = [
                name for name in outer if repr(name) in reason and inspect.isfunction(outer[name])
            ]
            change = f"mark {plain[0]} with @whale.compiled, too" if plain else "change it"
            msg = (
                f"{self.__name__} cannot be compiled for ({kinds}): {reason}; {change}, or use a"
                " function on columns, stream.map(whale.columns(function))"
            )
            raise ExpressionError(msg) from None
        if signature is None:
            known = ", ".join(map(str, dispatcher.signatures))
            msg = (
                f"{self.__name__} takes no ({kinds}): numba.njit has compiled it for {known} alone"
            )
            raise ExpressionError(msg)
        return signature.return_type

    def fingerprint(self) -> str | None:
        """Return a text that differs if the function computes anything else; None if none is known.

        It covers the code and all outer values that the code refers to, as numba has read them.
        """
        if self.own_dispatcher is not None:
            return fingerprint_of(self.own_dispatcher)
        found = fingerprint_of(self.function) if self._dispatcher is None else self._compiled_of
        return None if found is None else f"{_COMPILED_AS} {found}"

    def _forget_if_changed(self) -> None:
        """Forget what is compiled if an outer value has changed: numba has read them for good.

        What the user had numba compile goes on with the old values, as anywhere else; these are
        noted while it is not compiled yet.
        """
        if self.own_dispatcher is not None:
            fingerprint_of(self.own_dispatcher)
        elif self._dispatcher is not None and fingerprint_of(self.function) != self._compiled_of:
            self._dispatcher = self._loop = None

    def _check_options(self, options: Mapping[str, Any]) -> None:
        """Refuse what a loop cannot call, or should not for every row."""
        if options.get("parallel"):
            self._refuse("is compiled with parallel=True, and called row by row: leave that out")
        if not options.get("nopython"):
            self._refuse("is compiled for Python's objects: use numba.njit")

    def _refuse(self, reason: str) -> None:
        msg = f"{self.__name__} {reason}"
        raise TopologyError(msg)


def first_reason(text: str) -> str:
    """Return the line of numba's message that says what is wrong."""
    from re import sub

    plain = [line.strip() for line in sub(r"\x1b\[[0-9;]*m", "", text).splitlines()]
    lines = [
        line for line in plain if line and not line.startswith(("Failed in", "File", "During"))
    ]
    return " ".join(lines[:2])[:200]


def _side_effects(function: Callable[..., Any], seen: set[int]) -> Iterator[str]:
    """Yield what a function, or one that it calls, does besides computing its result."""
    if id(function) in seen:
        return
    seen.add(id(function))
    code = function.__code__
    if code.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
        yield "yields values"
    outer = outer_values(function)
    for part in codes(code):
        yield from _side_effects_in_code(part, outer)
    for name, value in outer.items():
        if isinstance(value, ModuleType):
            if value.__name__ in _CHANGING_MODULES:
                yield f"uses the module {value.__name__}"
        elif getattr(value, "__module__", None) in _CHANGING_MODULES:
            yield f"uses {name} of the module {value.__module__}"
        elif (called := as_function(value)) is not None:
            yield from (f"calls {name}, which {what}" for what in _side_effects(called, seen))


def _side_effects_in_code(code: CodeType, outer: Mapping[str, Any]) -> Iterator[str]:
    """Yield what code does besides computing; names in `outer` are not Python's own functions."""
    for step in dis.get_instructions(code):
        operation, name = step.opname, step.argval
        if operation in _WRITES and not (operation == "STORE_DEREF" and name in code.co_cellvars):
            yield f"{_WRITES[operation]} {name!r}"
        if operation == "LOAD_GLOBAL" and name in _INPUT_OUTPUT and name not in outer:
            yield f"calls {name}"
        if operation in ("LOAD_ATTR", "LOAD_METHOD") and name == "random":
            yield "uses random numbers"
