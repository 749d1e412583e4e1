"""What runs where: a placement is nothing but settings, and whether stages are fused."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ...configs.errors import SettingsError
from ...configs.settings import Settings

__all__ = [
    "PLACEMENTS",
    "WORKERS",
    "Placement",
    "check_given",
    "job_settings",
    "placement_settings",
    "placements_here",
    "workers_of",
]

#: The handlers, the engines and the collector have a process each, where there are cores for them.
WORKERS: Final = 3


@dataclass(frozen=True)
class Placement:
    """One way to place the stages.

    Attributes:
        fused: all stages are one, and every line has its own; there is nothing between them.
        apart: every worker is a host of its own, so that rows travel between hosts.
        settings: of its own.
        what: it, in words.
    """

    fused: bool
    apart: bool
    settings: Mapping[str, object]
    what: str


PLACEMENTS: Final[Mapping[str, Placement]] = {
    "fused": Placement(True, False, {}, "one stage, lines shared out to processes"),
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

_MEANT: Final = ("runtime.hosts", "transport.between_hosts")
"""What a placement is: other values of these would be another one."""

_ALWAYS: Final[Mapping[str, object]] = {
    # What has been read goes on at once.
    "transport.wtl_ms": 0.0,
    # The rows of a look fit into a frame; what waits longer, should wait on its line, as one batch.
    "transport.ring_bytes": 1 << 20,
    # A line that has gone on meanwhile cannot be read again.
    "runtime.max_restarts": 0,
}


def workers_of(name: str, workers: int | None, feeds: int) -> int:
    """Return how many workers a placement has; raises SettingsError if so many cannot be."""
    cores = len(os.sched_getaffinity(0))
    if PLACEMENTS[name].fused:
        if workers is not None and not 1 <= workers <= feeds:
            msg = (
                f"--placement {name} has a process for every line at most: give --workers 1 to "
                f"{feeds:,}, not {workers}"
            )
            raise SettingsError(msg)
        return workers or min(feeds, cores)
    if workers is not None and workers < 2:
        msg = f"--placement {name} needs 2 workers or more, not {workers}: handlers have their own"
        raise SettingsError(msg)
    return workers or max(2, min(WORKERS, cores))


def check_given(name: str, workers: int, given: Settings) -> None:
    """Raise SettingsError for settings that make another placement of this one."""
    meant = {"runtime.hosts": workers if PLACEMENTS[name].apart else 1, **PLACEMENTS[name].settings}
    for key in _MEANT:
        value = _setting_of(given, key)
        if key in meant and value not in {_setting_of(Settings(), key), meant[key]}:
            msg = (
                f"{key}={value} is no part of the placement {name!r}, which has {meant[key]}; "
                "leave it out, or choose another placement"
            )
            raise SettingsError(msg)


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


def job_settings(name: str, workers: int, feeds: int, given: Settings) -> Settings:
    """Return the settings of a job: the placement's, where the given ones are the default.

    Raises:
        SettingsError: they contradict the placement.
    """
    check_given(name, workers, given)
    defaults = Settings()
    return given.with_overrides(
        {
            key: value
            for key, value in placement_settings(name, workers, feeds).items()
            if _setting_of(given, key) == _setting_of(defaults, key)
        }
    )


def _setting_of(settings: Settings, key: str) -> Any:
    """Return a setting by its dotted path."""
    section, _, name = key.partition(".")
    return getattr(getattr(settings, section), name)


def placements_here() -> tuple[list[str], dict[str, str]]:
    """Return the placements that this machine can run, and those left out with the reason."""
    from ...transport.verbs.carriers import load_where_devices_are
    from ...transport.verbs.library import NoVerbsError

    try:
        load_where_devices_are()
    except NoVerbsError as error:
        return [name for name in PLACEMENTS if name != "verbs"], {"verbs": error.lack}
    return list(PLACEMENTS), {}
