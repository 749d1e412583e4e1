"""The modes of one-to-many that are compared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

__all__ = [
    "COMPARED",
    "INSTANCES_TCP",
    "MODES",
    "PICKLED",
    "RING_BYTES",
    "SLICE_ROWS",
    "Mode",
    "mode_named",
]

Route = Literal["non-blocking", "star", "chain", "binomial"]
Addressing = Literal["worker-oriented", "instance-oriented"]
Transport = Literal["tcp", "shared memory"]

SLICE_ROWS: Final = 32_768
"""Rows of a slice in all modes, where the source has that many: with tens of processes per core,
fewer context switches matter.
"""
RING_BYTES: Final = 16 << 20
"""Bytes of a ring in all modes: a few slices."""


@dataclass(frozen=True)
class Mode:
    """One mode.

    Attributes:
        name: its name in tables and plots.
        addressing: whether a row is serialized once per worker or once per instance.
        route: the tree of hosts.
        transport: tcp between logical hosts, or one host's shared memory.
        pickled: whether rows are pickled, once per row and destination.
    """

    name: str
    addressing: Addressing
    route: Route
    transport: Transport
    pickled: bool = False

    @property
    def deployment(self) -> tuple[str, bool]:
        """Modes with equal values can be switched while the job runs."""
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
"""Names of the modes, in the order of tables."""


def mode_named(name: str) -> Mode:
    """Return a mode by its name; KeyError if there is none."""
    for mode in MODES:
        if mode.name == name:
            return mode
    raise KeyError(name)
