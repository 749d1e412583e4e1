"""A process whose memory the kernel limits: it works within the limit, and ends beyond it."""

from __future__ import annotations

import pytest

from whale_ray.lab.bench.memory_limit import NoLimitError, run_within

MIB = 1 << 20


def test_work_within_its_memory_returns_and_more_ends_it() -> None:
    try:
        assert run_within(64 * MIB, lambda: len(b"x" * (16 * MIB))) == 16 * MIB
    except NoLimitError as error:
        pytest.skip(f"memory cannot be limited here: {error}")
    with pytest.raises(RuntimeError, match="64 MiB of memory ended without a result"):
        run_within(64 * MIB, lambda: len(b"x" * (128 * MIB)))
