"""`whale-ray bench streaming`: windows and keyed state, beside other engines over the same files.

`workloads` has what is run, `systems` who runs it, each in a process of its own (`__main__`). A
system reads the file, computes, and drops what it found; the time of the first run is apart from
that of later ones. Further parts: what a call of a handle costs (`handles`), what rows out of order
and late ones cost (`disorder`), and others on whale-ray alone (`suite.PARTS`).
"""

from __future__ import annotations

from typing import Any

_OF_SUITE = ("PARTS", "run")


def __getattr__(name: str) -> Any:
    """Return what the command wants of the suite.

    Workers import this package for a process of a workload; they need not load all systems.
    """
    if name in _OF_SUITE:
        from . import suite

        return getattr(suite, name)
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)
