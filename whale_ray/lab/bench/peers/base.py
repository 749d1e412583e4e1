"""A peer: a program in an environment of its own, with a time limit.

A peer sends tuples of 100 bytes from one source to many instances, each of which reads every byte
of every tuple (`read_rows`), for some seconds as fast as it can. The time until the last instance
has read the last tuple counts, too.

`make peers` puts the environments into `.peers/`. They hold only what the project's own environment
lacks, and a program sees only one of them.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from ....configs.errors import ResourceError, UsageError
from ....testing.hosts import owners

TUPLE_BYTES = 100
HOSTS = 30
"""Processes that share the instances if there are too many for a process each."""
OWN_PROCESSES_MAX = 16
"""Most instances that have a process each, on one host."""
NOT_INSTALLED = "not installed (make peers)"

_ROOT = Path(__file__).resolve().parents[4]
_START_S = 150.0
"""Time for a peer beside its sending: to start, drain and end."""
_GRACE_S = 5.0
"""Time to clean up after it is told to end."""
_TAIL_CHARACTERS = 1500


@dataclass(frozen=True, slots=True)
class PeerResult:
    """The result of a peer.

    Attributes:
        tuples_per_s: rate of the source; each tuple reached every instance.
        source_cpu_ns_per_tuple: CPU time of the source; None where it cannot be measured
            separately.
        cpu_ns_per_tuple: CPU time of all its processes; None where it is unknown.
        note: its set-up, in a few words.
    """

    tuples_per_s: float
    source_cpu_ns_per_tuple: float | None
    cpu_ns_per_tuple: float | None
    note: str


@dataclass(frozen=True, slots=True)
class PeerOutput:
    """The JSON that a program prints on its last line."""

    tuples: int
    wall_s: float
    source_cpu_s: float | None
    cpu_s: float | None
    note: str

    def print(self) -> None:
        """Print it."""
        print(json.dumps({name: getattr(self, name) for name in self.__slots__}), flush=True)

    def as_result(self) -> PeerResult:
        """Return it per tuple."""
        if not self.tuples:
            return PeerResult(0.0, None, None, f"{self.note}; not one tuple in {self.wall_s:.0f} s")

        def per_tuple(seconds: float | None) -> float | None:
            return None if seconds is None else seconds / self.tuples * 1e9

        rate = self.tuples / self.wall_s
        return PeerResult(rate, per_tuple(self.source_cpu_s), per_tuple(self.cpu_s), self.note)


@dataclass(frozen=True)
class Command:
    """A program to run, and what its environment adds to the present one."""

    argv: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)


class PeerSystem(ABC):
    """A system to compare with.

    Attributes:
        name: its name on the command line.
        what: its way of sending, in a few words.
        batches: tuples per message that are worth measuring, the usual number first.
        instances_max: most instances; more take too much memory or time here.
    """

    name: ClassVar[str]
    what: ClassVar[str]
    batches: ClassVar[tuple[int, ...]]
    instances_max: ClassVar[int] = 512

    @abstractmethod
    def missing(self) -> str | None:
        """Return why it cannot run here, None if it can."""

    @abstractmethod
    def command(self, instances: int, seconds: float, batch: int) -> Command:
        """Return the measuring program."""

    def measure(self, instances: int, seconds: float, batch: int = 0) -> PeerResult:
        """Run it; `batch` tuples in a message, 0 for the usual number.

        Raises:
            ResourceError: it is not installed, fails or does not end in time.
            UsageError: it does not support so many instances.
        """
        missing = self.missing()
        if missing is not None:
            msg = f"the peer {self.name}: {missing}"
            raise ResourceError(msg)
        if not 1 <= instances <= self.instances_max:
            msg = f"the peer {self.name} takes 1 to {self.instances_max} instances, not {instances}"
            raise UsageError(msg)
        command = self.command(instances, seconds, batch or self.batches[0])
        return run_program(self.name, command, seconds + _START_S).as_result()


def processes_for(instances: int) -> int:
    """Return how many processes serve the instances: one each, or those of 30 logical hosts."""
    return instances if instances <= OWN_PROCESSES_MAX else min(HOSTS, instances)


def shares(instances: int) -> list[int]:
    """Return how many instances each process serves."""
    processes = processes_for(instances)
    return [
        (place + 1) * instances // processes - place * instances // processes
        for place in range(processes)
    ]


def environment_of(name: str) -> Path:
    """Return the folder of an environment that `make peers` creates."""
    return Path(os.environ.get("WHALE_RAY_PEERS", _ROOT / ".peers")) / name


def packages_of(name: str) -> Path:
    """Return the folder of an environment's Python packages."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return environment_of(name) / "lib" / version / "site-packages"


def python_path(name: str) -> dict[str, str]:
    """Return the variables with which Python sees one environment beside the project's own."""
    paths = [str(_ROOT), str(packages_of(name)), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(path for path in paths if path)}


def has_package(environment: str, package: str) -> bool:
    """Return whether an environment or the present one holds a Python package."""
    return (packages_of(environment) / package).is_dir() or find_spec(package) is not None


def python_program(module: str, *arguments: object) -> list[str]:
    """Return the command that runs a module of this package."""
    return [sys.executable, "-m", f"{__package__}.{module}", *map(str, arguments)]


def run_program(name: str, command: Command, timeout_s: float) -> PeerOutput:
    """Run a program to its end; return what it prints on its last line; raise as `printed_by`."""
    return PeerOutput(**printed_by(name, command, timeout_s))


def printed_by(name: str, command: Command, timeout_s: float) -> dict[str, Any]:
    """Run a program to its end, or kill it with all its children; return its last line's JSON.

    Raises:
        ResourceError: it failed, or did not end in time.
    """
    ends_with_us = partial(end_with_parent, os.getpid())
    with tempfile.TemporaryDirectory(prefix="peer-", ignore_cleanup_errors=True) as folder:
        process = subprocess.Popen(
            command.argv,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **command.environment, "TMPDIR": folder},
            start_new_session=True,
            preexec_fn=ends_with_us,  # noqa: PLW1509  # two system calls, nothing is allocated
            text=True,
        )
        try:
            told, errors = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired as error:
            msg = f"the peer {name} did not end within {timeout_s:.0f} s"
            raise ResourceError(msg) from error
        finally:
            _end_group(process)
    lines = told.strip().splitlines()
    if process.returncode or not lines:
        tail = (errors.strip() or told.strip())[-_TAIL_CHARACTERS:]
        msg = f"the peer {name} failed ({process.returncode}): {tail}"
        raise ResourceError(msg)
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def end_with_parent(parent: int | None = None) -> None:
    """Have the kernel terminate this process when the one that started it ends."""
    owners.end_with_parent(signal.SIGTERM, parent)


def _end_group(process: subprocess.Popen[str]) -> None:
    """End a program and its children, first by SIGTERM, on which some remove their files."""
    with contextlib.suppress(ProcessLookupError):
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE_S)
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
