"""Ray: one call of an actor method for every instance and batch.

A batch goes into the object store once, if it is too large to travel in the call, and every call
gets a reference to it. The driver keeps a few batches under way and waits for the oldest. Up to 16
instances have an actor each; more share 30 actors, each with a call of its own.
"""

from __future__ import annotations

import os
import resource
import sys
import tempfile
import time
from collections import deque
from typing import Any, ClassVar

import numpy as np

from ....transport.clock import SystemClock
from .base import (
    TUPLE_BYTES,
    Command,
    PeerOutput,
    PeerSystem,
    end_with_parent,
    processes_for,
    python_program,
)
from .reading import read_rows, warm_up

_CLOCK = SystemClock()
_STORE_BYTES = 256 << 20
_BY_VALUE_BYTES_MAX = 100 << 10
_BATCHES_UNDER_WAY = 4


class RayActors(PeerSystem):
    """One actor call for each instance and batch."""

    name: ClassVar[str] = "ray"
    what: ClassVar[str] = "one actor call for each instance and batch"
    batches: ClassVar[tuple[int, ...]] = (2621, 100)

    def missing(self) -> str | None:
        """See `PeerSystem.missing`."""
        return None

    def command(self, instances: int, seconds: float, batch: int) -> Command:
        """See `PeerSystem.command`."""
        quiet = {"RAY_DEDUP_LOGS": "0", "RAY_USAGE_STATS_ENABLED": "0"}
        return Command(python_program("ray_actors", instances, seconds, batch), quiet)


class ReadingActor:
    """An actor that serves some instances."""

    def __init__(self) -> None:
        warm_up()
        self._begin_s = time.process_time()

    def take(self, message: np.ndarray) -> int:
        """Read a batch, for one instance."""
        return read_rows(message)

    def cpu_s(self) -> float:
        """Return the CPU time since it was made."""
        return time.process_time() - self._begin_s


def _fan_out(ray: Any, actors: list[Any], instances: int, content: np.ndarray, end_ns: int) -> int:
    """Send until `end_ns`, but at least once; return how many batches all instances have read."""
    targets = [actors[number * len(actors) // instances] for number in range(instances)]
    under_way: deque[list[Any]] = deque(maxlen=_BATCHES_UNDER_WAY + 1)
    batches = 0
    while not batches or _CLOCK.monotonic_ns() < end_ns:
        message = ray.put(content) if content.size > _BY_VALUE_BYTES_MAX else content
        under_way.append([actor.take.remote(message) for actor in targets])
        batches += 1
        if len(under_way) > _BATCHES_UNDER_WAY:
            ray.get(under_way.popleft())
    for calls in under_way:
        ray.get(calls)
    return batches


def main(arguments: list[str]) -> None:
    """Measure; arguments: instances, seconds, tuples per batch."""
    import ray

    instances, seconds, batch = int(arguments[0]), float(arguments[1]), int(arguments[2])
    end_with_parent()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    ray.init(
        num_cpus=len(os.sched_getaffinity(0)),
        object_store_memory=_STORE_BYTES,
        include_dashboard=False,
        log_to_driver=False,
        _temp_dir=tempfile.gettempdir(),
    )
    try:
        remote = ray.remote(num_cpus=0)(ReadingActor)
        actors = [remote.remote() for _ in range(processes_for(instances))]
        before_s = sum(ray.get([actor.cpu_s.remote() for actor in actors]))
        content = np.zeros(batch * TUPLE_BYTES, np.uint8)
        own_s, begin_ns = time.process_time(), _CLOCK.monotonic_ns()
        end_ns = begin_ns + int(seconds * 1e9)
        batches = _fan_out(ray, actors, instances, content, end_ns)
        wall_s = (_CLOCK.monotonic_ns() - begin_ns) / 1e9
        own_s = time.process_time() - own_s
        cpu_s = sum(ray.get([actor.cpu_s.remote() for actor in actors])) - before_s + own_s
    finally:
        ray.shutdown()
    note = f"{batch} tuples a call, {len(actors)} actors; touch in numba"
    PeerOutput(batches * batch, wall_s, own_s, cpu_s, note).print()


if __name__ == "__main__":
    main(sys.argv[1:])
