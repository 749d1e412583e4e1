"""How large the rings of a job may be."""

from __future__ import annotations

from ..configs.errors import ResourceError
from ..configs.settings import TransportSettings
from ..configs.units import format_mib
from .ring_layout import PAGE_BYTES


def plan_ring_bytes(
    count: int, settings: TransportSettings, shm_free_bytes: int | None, memory_free_bytes: int
) -> int:
    """Return the largest capacity with which `count` equal rings fit the budget of a job.

    The capacity is `ring_bytes`, or that halved some times; each ring also takes a header page. The
    budget is `memory_budget_fraction` of the free memory or of /dev/shm, the lesser (pass
    None where the segments are no files there); the size is at most `ring_bytes`. Raises
    ResourceError if it would be less than `ring_bytes_min`.
    """
    place, free_bytes = "memory", memory_free_bytes
    if shm_free_bytes is not None and shm_free_bytes < memory_free_bytes:
        place, free_bytes = "/dev/shm", shm_free_bytes
    budget_bytes = int(free_bytes * settings.memory_budget_fraction)
    ring_bytes = settings.ring_bytes
    while count * (ring_bytes + PAGE_BYTES) > budget_bytes:
        ring_bytes //= 2
        if ring_bytes < settings.ring_bytes_min:
            free = f"{format_mib(free_bytes)} free in {place}"
            raise _does_not_fit(count, settings, budget_bytes, free)
    return ring_bytes


def _does_not_fit(
    count: int, settings: TransportSettings, budget_bytes: int, free: str
) -> ResourceError:
    need_bytes = count * (settings.ring_bytes_min + PAGE_BYTES)
    msg = (
        f"the job's {count} rings need {format_mib(need_bytes)} at the least, but may take only "
        f"{format_mib(budget_bytes)}, {settings.memory_budget_fraction:.0%} of {free}; make "
        "room there, lower the parallelism or the number of workers, raise "
        "transport.memory_budget_fraction, or lower transport.ring_bytes_min"
    )
    return ResourceError(msg)
