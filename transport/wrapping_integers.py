"""Lets numba compile functions whose integers wrap.

numba tells LLVM that signed integers never overflow. Where they do, what LLVM makes of them depends
on what else it knows: of a function in a loop more than of the same function by itself, so that the
results differ. Without that, an integer keeps its low 64 bits everywhere.
"""

from __future__ import annotations

from typing import Any

from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import register_pass
from numba.core.lowering import Lower
from numba.core.typed_passes import NativeLowering

__all__ = ["WrappingCompiler"]

_NEVER_OVERFLOWS = "nsw"


class _WrappingLower(Lower):  # type: ignore[misc]  # numba has no types
    def post_lower(self) -> None:
        """Take from all instructions of the function what they tell of overflows."""
        super().post_lower()
        for function in self.module.functions:
            for block in function.blocks:
                for one in block.instructions:
                    if _NEVER_OVERFLOWS in getattr(one, "flags", ()):
                        one.flags = [flag for flag in one.flags if flag != _NEVER_OVERFLOWS]


@register_pass(mutates_CFG=True, analysis_only=False)
class _WrappingLowering(NativeLowering):  # type: ignore[misc]  # as above
    _name = "native_lowering_of_integers_that_wrap"

    @property
    def lowering_class(self) -> type:
        """What writes LLVM's instructions."""
        return _WrappingLower


class WrappingCompiler(CompilerBase):  # type: ignore[misc]  # as above
    """numba's own compiler, but for the overflows: `njit(pipeline_class=WrappingCompiler)`."""

    def define_pipelines(self) -> list[Any]:
        """Return numba's passes, with another one that writes the instructions."""
        passes = DefaultPassBuilder.define_nopython_pipeline(self.state)
        passes.passes = [
            (_WrappingLowering if kind is NativeLowering else kind, what)
            for kind, what in passes.passes
        ]
        passes.finalize()
        return [passes]
