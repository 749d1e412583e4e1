"""The ways from one to many that are compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

__all__ = ["COMPARED", "INSTANCES_TCP", "MODES", "PICKLED", "Mode", "Slices", "mode_named"]

Route = Literal["non-blocking", "star", "chain", "binomial"]
Addressing = Literal["worker-oriented", "instance-oriented"]
Transport = Literal["tcp", "shared memory"]


@dataclass(frozen=True)
class Slices:
    """How rows travel: with tens of processes on a core, it counts how seldom they take turns.

    Attributes:
        rows: of a slice, where the source has so many.
        ring_bytes: of a ring.
    """

    rows: int
    ring_bytes: int


_SLICES: Final[Mapping[Transport, Slices]] = {
    # What suits a message per instance best, whose 480 rings are what all else is compared with;
    # longer rings suit trees a little better, and slow that down.
    "tcp": Slices(16_384, 8 << 20),
    "shared memory": Slices(32_768, 16 << 20),
}
"""For all modes of a transport alike."""


@dataclass(frozen=True)
class Mode:
    """One way.

    Attributes:
        name: as tables and plots call it.
        addressing: whether a row is serialized once per worker or once per instance.
        route: the tree of hosts.
        transport: tcp between logical hosts, or one host's shared memory.
        pickled: whether rows are Python's pickles, one per row and destination.
    """

    name: str
    addressing: Addressing
    route: Route
    transport: Transport
    pickled: bool = False

    @property
    def slices(self) -> Slices:
        """How rows travel."""
        return _SLICES[self.transport]

    @property
    def deployment(self) -> tuple[str, bool]:
        """What modes must have in common to be switched while the job runs."""
        return self.transport, self.pickled


MODES = (
    Mode("non-blocking", "worker-oriented", "non-blocking", "tcp"),
    Mode("star", "worker-oriented", "star", "tcp"),
    Mode("binomial", "worker-oriented", "binomial", "tcp"),
    Mode("chain", "worker-oriented", "chain", "tcp"),
    Mode("instances, tcp", "instance-oriented", "star", "tcp"),
    Mode("one host", "worker-oriented", "star", "shared memory"),
    Mode("instances, one host", "instance-oriented", "star", "shared memory"),
    Mode("instances, tcp, pickled", "instance-oriented", "star", "tcp", pickled=True),
)

INSTANCES_TCP = "instances, tcp"
PICKLED = "instances, tcp, pickled"

COMPARED = tuple(mode.name for mode in MODES)
"""Their names, in the order of tables."""


def mode_named(name: str) -> Mode:
    """Return a mode by its name; KeyError if there is none."""
    for mode in MODES:
        if mode.name == name:
            return mode
    raise KeyError(name)
