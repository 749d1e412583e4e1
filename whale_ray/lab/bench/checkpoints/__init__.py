"""`whale-ray bench checkpoints`: what checkpoints cost, and how soon a job goes on after a failure.

Each part compares a job with one of the same run that differs in one thing: with and without
checkpoints (`rates`), much and little that changed (`sizes`), little and much state (`recovery`),
all state in memory and most of it on disk (`spilling`), our store and others (`stores`).
`latencies` has no counterpart.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .suite import PARTS, run

__all__ = ["PARTS", "run"]


def __getattr__(name: str) -> Any:
    """Import the suite when it is asked for: workers load this package for its jobs alone.

    A worker that takes the place of another loads what the job uses first, as a user's job does.
    """
    if name not in __all__:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    return getattr(import_module(".suite", __name__), name)
