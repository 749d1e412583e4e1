"""OpenMPI: `MPI_Bcast` of prepared bytes from a rank without instances to all others.

It does nothing per tuple. A rank receives a message once, however many instances it serves, and
each of them reads it. Without `read_rows` it is the bare broadcast.
"""

from __future__ import annotations

import os
import sys
import time
from importlib import import_module
from typing import Any, ClassVar

import numpy as np

from ....transport.clock import SystemClock
from .base import (
    NOT_INSTALLED,
    TUPLE_BYTES,
    Command,
    PeerOutput,
    PeerSystem,
    end_with_parent,
    environment_of,
    processes_for,
    python_path,
    python_program,
    shares,
)
from .reading import read_rows, warm_up

ENVIRONMENT = "openmpi"
_CLOCK = SystemClock()
_LAST = 1


class OpenMpi(PeerSystem):
    """MPI_Bcast; every instance reads."""

    name: ClassVar[str] = "openmpi"
    what: ClassVar[str] = "MPI_Bcast of prepared bytes, touched by every instance"
    batches: ClassVar[tuple[int, ...]] = (2621, 32_768)
    touched: ClassVar[bool] = True

    def missing(self) -> str | None:
        """See `PeerSystem.missing`."""
        return None if (environment_of(ENVIRONMENT) / "bin" / "mpirun").exists() else NOT_INSTALLED

    def command(self, instances: int, seconds: float, batch: int) -> Command:
        """See `PeerSystem.command`."""
        launcher = [
            *(str(environment_of(ENVIRONMENT) / "bin" / "mpirun"), "--oversubscribe"),
            *(["--allow-run-as-root"] if os.geteuid() == 0 else []),
            # More ranks than processors: a waiting rank must yield.
            *("--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"),
            *("-n", str(1 + processes_for(instances))),
        ]
        program = python_program("openmpi", instances, seconds, batch, int(self.touched))
        return Command([*launcher, *program], python_path(ENVIRONMENT))


class OpenMpiUntouched(OpenMpi):
    """MPI_Bcast alone."""

    name: ClassVar[str] = "openmpi-untouched"
    what: ClassVar[str] = "MPI_Bcast of prepared bytes, which nobody reads"
    touched: ClassVar[bool] = False


def _broadcast(world: Any, message: np.ndarray, seconds: float) -> int:
    """Send for some seconds, with the last message marked; return the number of messages."""
    end_ns = _CLOCK.monotonic_ns() + int(seconds * 1e9)
    count = 0
    while not message[0]:
        if _CLOCK.monotonic_ns() >= end_ns:
            message[0] = _LAST
        world.Bcast(message, root=0)
        count += 1
    return count


def _receive(world: Any, message: np.ndarray, passes: int) -> int:
    """Receive until the marked message; return the number of messages."""
    count = 0
    while not message[0]:
        world.Bcast(message, root=0)
        for _ in range(passes):
            read_rows(message)
        count += 1
    return count


def main(arguments: list[str]) -> None:
    """Measure; arguments: instances, seconds, tuples per message, whether they are read."""
    end_with_parent()
    world = import_module("mpi4py.MPI").COMM_WORLD
    instances, seconds, batch = int(arguments[0]), float(arguments[1]), int(arguments[2])
    served = [0, *shares(instances)][world.rank] if int(arguments[3]) else 0
    message = np.zeros(batch * TUPLE_BYTES, np.uint8)
    warm_up()
    world.Barrier()
    before_s, begin_ns = time.process_time(), _CLOCK.monotonic_ns()
    if world.rank == 0:
        count = _broadcast(world, message, seconds)
    else:
        count = _receive(world, message, served)
    world.Barrier()
    wall_s = (_CLOCK.monotonic_ns() - begin_ns) / 1e9
    cpu_s = world.gather(time.process_time() - before_s)
    if world.rank == 0:
        how = "touch in numba" if int(arguments[3]) else "untouched"
        note = f"{batch} tuples a message, {world.size - 1} ranks beside the root's; {how}"
        PeerOutput(count * batch, wall_s, cpu_s[0], sum(cpu_s), note).print()


if __name__ == "__main__":
    main(sys.argv[1:])
