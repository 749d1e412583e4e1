"""Loads kept functions without their bitcode, which is parsed once a caller is compiled.

numba keeps machine code and bitcode: the latter is compiled into callers. A process that compiles
nothing needs none of it, and parsing it takes longer than loading the machine code.

Numba has no public way for that. What is used here is the same in numba 0.61 to 0.68: what a
`FunctionCache` keeps of a function begins with its library's name, kind and contents, then its
descriptor; and the attributes of `JITCodeLibrary` and of its engine that have an underscore.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import llvmlite.binding as llvm

__all__ = ["defer_bitcode"]


def defer_bitcode(kept: Any) -> None:
    """Let a `FunctionCache` load functions without their bitcode, which is parsed when needed."""
    rebuild = kept._impl.rebuild

    def rebuilds(target: Any, data: Any) -> Any:
        (name, kind, contents), descriptor, *rest = data
        if kind != "object":
            return rebuild(target, data)
        machine_code, bitcode = contents
        engine = target.codegen()._engine
        engine._defined_symbols.add(descriptor.llvm_cpython_wrapper_name)
        result = rebuild(target, ((name, kind, (machine_code, _no_code())), descriptor, *rest))
        _parse_when_needed(result.library, bitcode, engine)
        return result

    kept._impl.rebuild = rebuilds


def _parse_when_needed(library: Any, bitcode: bytes, engine: Any) -> None:
    """Let a library parse its bitcode when it is linked, or asked for what only that can tell."""
    pointer_to = library.get_pointer_to_function

    def parse() -> None:
        library._shared_module = llvm.parse_bitcode(bitcode)
        engine._load_defined_symbols(library._shared_module)
        for name in ("_get_module_for_linking", "get_pointer_to_function"):
            vars(library).pop(name, None)  # as its class has it, from now on

    def module_for_linking() -> Any:
        parse()
        return library._get_module_for_linking()

    def pointer_to_function(name: str) -> Any:
        if not engine.is_symbol_defined(name):
            parse()
            return library.get_pointer_to_function(name)
        return pointer_to(name)

    library._get_module_for_linking = module_for_linking
    library.get_pointer_to_function = pointer_to_function


@cache
def _no_code() -> bytes:
    """Return the bitcode of a module that defines nothing."""
    empty: bytes = llvm.parse_assembly("").as_bitcode()
    return empty
