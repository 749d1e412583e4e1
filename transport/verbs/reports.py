"""What is told of an RDMA device that was examined (examination.py), without loading anything."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DeviceReport:
    """One device: what it is, or why links cannot use it."""

    name: str
    addresses: tuple[str, ...] = ()
    """The IP addresses that it bears."""
    reads: int = 0
    """READs under way at a time, of one queue pair."""
    lack: str = ""
    """Why links cannot use it, and the remedy; empty if they can."""
    too_little_memory: str = ""
    """Why a ring cannot be registered, and the remedy, if so: its bytes go by SEND, copied."""
