"""How far a controller has come: what its successor has to know in order to go on."""

from __future__ import annotations

from dataclasses import dataclass

from ..configs.errors import WhaleError
from .controller_events import WorkerResult


@dataclass(frozen=True)
class ControllerProgress:
    """What a controller has to know in order to go on for one that died.

    `step` is an index of `STEPS`, or one beyond them while the output is published; `arguments` are
    what the step was given; `made` is what members made for each other, for relays that rejoin;
    `repairing` are the relays that are being replaced, `repaired` those that were, in this attempt;
    `failing` says that the job is to end, with `error` or, without one, as the user cancelled it.
    """

    attempt: int
    step: int
    arguments: tuple[object, ...]
    draining: bool
    made: tuple[tuple[WorkerResult, ...], ...] = ()
    repairing: frozenset[int] = frozenset()
    repaired: frozenset[int] = frozenset()
    failing: bool = False
    error: WhaleError | None = None
