"""`whale-ray bench checkpoints`: what checkpoints cost, and how soon a job goes on after a failure.

Each part compares a job with one of the same run that differs in one thing: with and without
checkpoints (`rates`), much and little that changed (`sizes`), little and much state (`recovery`),
all state in memory and most of it on disk (`spilling`). `latencies` has no counterpart.
"""

from __future__ import annotations

from .suite import PARTS, run

__all__ = ["PARTS", "run"]
