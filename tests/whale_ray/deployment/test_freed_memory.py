"""Freed memory stays with a worker: what it allocates next faults no page in."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import resource, sys
import numpy as np
from whale_ray.deployment.freed_memory import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        slices = [np.ones(1 << 17) for _ in range(8)]  # 8 MiB: 2,048 pages
        del slices
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

faults()
before = faults()
keep_freed_memory()
faults()
print(before, faults())
"""


def test_slices_that_follow_one_another_use_the_same_pages() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True
    )
    before, after = map(int, ran.stdout.split())
    assert before > 20_000  # of 20 times 2,048
    assert after < 2_048
