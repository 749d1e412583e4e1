"""The processor that the functions of a wheel are compiled for: what nearly all machines can do.

numba loads what is kept for exactly the processor at hand, with all that it can do. A wheel is made
on one machine and used on others, so its functions are compiled for level 3 of x86-64, which Intel
has made since 2013 and AMD since 2015. They are used until `whale-ray compile`, or a job whose
functions are not among them, has compiled for the processor at hand.

Elsewhere, as on ARM, a wheel carries no compiled functions, and the first job compiles.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from functools import cache
from typing import Final

__all__ = [
    "COMPILING_FOR_IT",
    "OWN_PROCESSOR_VARIABLE",
    "Machine",
    "has_common_processor",
    "machines_for",
    "why_not_common",
]

Machine = tuple[str, str, str]
"""What numba tells machines apart by: the triple, the processor's name, and what it can do."""

OWN_PROCESSOR_VARIABLE: Final = "WHALE_RAY_OWN_PROCESSOR"
"""If it is set, nothing is used that was compiled for the common processor."""

_NAME, _FEATURES = "NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES"
COMPILING_FOR_IT: Final[Mapping[str, str]] = {_NAME: "x86-64-v3", _FEATURES: ""}
"""Variables of a process that compiles for the common processor."""

_ABLE_TO: Final = frozenset(
    f"+{each}"
    for each in (
        *("avx", "avx2", "bmi", "bmi2", "cx16", "f16c", "fma", "lzcnt", "movbe", "popcnt"),
        *("sahf", "sse3", "sse4.1", "sse4.2", "ssse3", "xsave"),
    )
)
"""What level 3 of x86-64 has, in LLVM's names."""


def has_common_processor() -> bool:
    """Return whether there is one, and this machine can do as much."""
    return not why_not_common()


def why_not_common() -> str:
    """Return why this machine cannot run what is compiled for the common processor, "" if it can.

    Whoever compiles for it also runs that, so code for more than the machine can do would end him.
    """
    import llvmlite.binding as llvm

    if platform.machine() != "x86_64":
        return f"this machine is {platform.machine()}"
    lacks = _ABLE_TO - set(llvm.get_host_cpu_features().flatten().split(","))
    return f"this one lacks {', '.join(sorted(each[1:] for each in lacks))}" if lacks else ""


def machines_for(own: Machine) -> tuple[Machine, ...]:
    """Return whose compiled functions this process can use, the best first.

    Args:
        own: of this process; what the user has switched off, as by NUMBA_ENABLE_AVX, is no part.
    """
    return (own,) if OWN_PROCESSOR_VARIABLE in os.environ else _usable(own)


@cache
def _usable(own: Machine) -> tuple[Machine, ...]:
    triple, _name, able_to = own
    common = triple, COMPILING_FOR_IT[_NAME], COMPILING_FOR_IT[_FEATURES]
    is_one = triple.startswith("x86_64") and set(able_to.split(",")) >= _ABLE_TO
    return (own, common) if is_one and own != common else (own,)
