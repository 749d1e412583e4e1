"""Compiles, when imported, what the totals of bids take: for a machine that is slow to compile.

`.ci/rdma-guest --modules tests.whale_ray.hosts.compiled_bids …` carries it along.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import whale_ray as whale
from tests.whale_ray.hosts.bids import totals, write_bids

with tempfile.TemporaryDirectory() as _folder:
    _bids = write_bids(Path(_folder, "bids.arrow"), 50_000)
    _topology = totals(whale.sources.ipc(_bids), "late_merge", 2)
    whale.submit(_topology, on="processes", workers=2).wait(280)
