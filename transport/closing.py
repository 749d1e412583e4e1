"""Closes several things, whatever closing some of them raises."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

__all__ = ["close_after_error", "close_all"]

_log = logging.getLogger(__name__)


def close_all(closings: Iterable[Callable[[], None]]) -> None:
    """Call all of them, whatever some of them raise; then raise the first of their errors."""
    first: BaseException | None = None
    for close in closings:
        try:
            close()
        except BaseException as error:  # noqa: BLE001  # the others must be closed, too
            first = first or error
    if first is not None:
        raise first


def close_after_error(closings: Iterable[Callable[[], None]]) -> None:
    """Call all of them as an error is raised, which is told; what they raise is logged."""
    try:
        close_all(closings)
    except Exception as error:  # noqa: BLE001  # of a user's class
        _log.warning("whale-ray: after an error, which is told, closing failed, too: %r", error)
