"""What runs where: a placement is nothing but settings, and whether stages are fused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ...configs.errors import SettingsError

__all__ = ["PLACEMENTS", "WORKERS", "Placement", "placement_settings", "workers_of"]

#: The handlers, the engines and the collector have a process each.
WORKERS: Final = 3


@dataclass(frozen=True)
class Placement:
    """One way to place the stages.

    Attributes:
        fused: all stages are one, in one process; there is nothing between them.
        apart: every worker is a host of its own, so that rows travel between hosts.
        settings: of its own.
        what: it, in words.
    """

    fused: bool
    apart: bool
    settings: Mapping[str, object]
    what: str


PLACEMENTS: Final[Mapping[str, Placement]] = {
    "fused": Placement(True, False, {}, "one process, one stage"),
    "shared-memory": Placement(False, False, {}, "processes of one host"),
    "tcp": Placement(
        False,
        True,
        {"transport.between_hosts": "tcp"},
        "a logical host for every process, and TCP between them",
    ),
    "verbs": Placement(
        False,
        True,
        {"transport.between_hosts": "verbs"},
        "the same, and RDMA verbs between them",
    ),
}

_ALWAYS: Final[Mapping[str, object]] = {
    # What has been read goes on at once.
    "transport.wtl_ms": 0.0,
    # What waits, should wait on its line: there it makes one batch, in a ring it makes many frames.
    "transport.ring_bytes": 256 << 10,
    # A line that has gone on meanwhile cannot be read again.
    "runtime.max_restarts": 0,
}


def workers_of(name: str, workers: int | None) -> int:
    """Return how many workers a placement has; raises SettingsError if so many cannot be."""
    if PLACEMENTS[name].fused:
        if workers not in (None, 1):
            msg = f"--placement {name} is one process: leave out --workers {workers}"
            raise SettingsError(msg)
        return 1
    if workers is not None and workers < 2:
        msg = f"--placement {name} needs 2 workers or more, not {workers}: handlers have their own"
        raise SettingsError(msg)
    return workers or WORKERS


def placement_settings(name: str, workers: int, feeds: int) -> dict[str, object]:
    """Return the settings of a placement, as overrides.

    Handlers have workers for themselves, up to half of those that the collector leaves; engines
    and the collector share the rest.
    """
    placement = PLACEMENTS[name]
    settings = {**_ALWAYS, **placement.settings}
    if not placement.fused:
        settings["runtime.source_workers"] = max(1, min(feeds, (workers - 1) // 2))
    settings["runtime.hosts"] = workers if placement.apart else 1
    return settings
