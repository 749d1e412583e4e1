"""The report on a probed RDMA device (probe.py), without loading pyverbs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DeviceReport:
    """One device: its addresses and limits, or why links cannot use it."""

    name: str
    addresses: tuple[str, ...] = ()
    """Its IP addresses."""
    reads: int = 0
    """READs of one queue pair that it works on at a time."""
    lack: str = ""
    """Why links cannot use it, and the remedy; empty if they can."""
    too_little_memory: str = ""
    """Why a ring cannot be registered, so that its bytes go by SEND, and the remedy; or empty."""
