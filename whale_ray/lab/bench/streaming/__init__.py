"""`whale-ray bench streaming`: windows and keyed state, beside other engines over the same files.

`workloads` has what is run, `systems` who runs it, each in a process of its own (`__main__`). A
system reads the file, computes, and drops what it found; the time of the first run is apart from
that of later ones. Further parts: what a call of a handle costs (`handles`), and what rows out of
order and late ones cost (`disorder`).
"""

from __future__ import annotations

from .suite import PARTS, run

__all__ = ["PARTS", "run"]
