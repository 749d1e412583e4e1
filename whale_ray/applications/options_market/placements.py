"""Placements of the stages on workers: a placement is a set of settings, and fused or not."""

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

#: Handlers, engines and collector have a process each if there are enough cores.
WORKERS: Final = 3


@dataclass(frozen=True)
class Placement:
    """One placement of the stages.

    Attributes:
        fused: all operators are one stage, with an instance per line.
        apart: every worker is a logical host of its own, so rows travel between hosts.
        settings: settings that the placement sets.
        what: description for the help text.
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
"""The settings that define a placement; a user's value must not contradict them."""

_ALWAYS: Final[Mapping[str, object]] = {
    # Rows are sent as soon as they are read.
    "transport.wtl_ms": 0.0,
    # A poll's rows fit into one frame; further rows wait on their line, to be read as one batch.
    "transport.ring_bytes": 1 << 20,
    # A feed line cannot be replayed after a restart.
    "runtime.max_restarts": 0,
}


def workers_of(name: str, workers: int | None, feeds: int) -> int:
    """Return the number of workers; raises SettingsError if the placement cannot have `workers`."""
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
    """Raise SettingsError for settings that contradict the placement."""
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

    One worker is left to the collector; up to half of the others run only handlers. Engines and
    the collector share the rest.
    """
    placement = PLACEMENTS[name]
    settings = {**_ALWAYS, **placement.settings}
    if not placement.fused:
        settings["runtime.source_workers"] = max(1, min(feeds, (workers - 1) // 2))
    settings["runtime.hosts"] = workers if placement.apart else 1
    return settings


def job_settings(name: str, workers: int, feeds: int, given: Settings) -> Settings:
    """Return the settings of a job: the given ones, with the placement's in place of defaults.

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
    """Return the placements that this machine can run, and for the others the reason why not."""
    from ...transport.verbs.carriers import load_where_devices_are
    from ...transport.verbs.library import NoVerbsError

    try:
        load_where_devices_are()
    except NoVerbsError as error:
        return [name for name in PLACEMENTS if name != "verbs"], {"verbs": error.lack}
    return list(PLACEMENTS), {}
