"""The options of `submit` that are only for Ray."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class RayOptions:
    """The arguments of `submit` that are only for Ray; see there."""

    address: str | None = None
    detach: bool = False
    queue: bool = False
    runtime_env: Mapping[str, Any] | None = None
