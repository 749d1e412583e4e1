"""Delta tables whose transactions fail before or after they are made."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from whale_ray.operators.sinks.delta_log import DeltaLog


def let_transactions_fail(patch: pytest.MonkeyPatch, chance: Random, failures: float) -> None:
    """Let the connection break at this rate, before a transaction and after it."""
    real = DeltaLog._try

    def fail(self: DeltaLog, *arguments: Any) -> bool:
        if chance.random() < failures:
            raise OSError("the connection broke before")
        done = real(self, *arguments)
        if chance.random() < failures:
            raise OSError("the connection broke after")
        return done

    patch.setattr(DeltaLog, "_try", fail)
