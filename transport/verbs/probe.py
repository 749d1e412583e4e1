"""What each RDMA device of this machine could do for whale-ray, found out by trying.

`python -m whale_ray.transport.verbs.probe` writes it as JSON: the doctor asks in a process of
its own, as a library that belongs to another kernel or libibverbs may take its process with it.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from typing import Final

from ...configs.errors import ResourceError
from ...configs.settings import TransportSettings
from . import library as pyverbs
from .device import Buffer, Device, device_names
from .equipment import Equipment
from .library import Library
from .regions import Regions
from .reports import DeviceReport

WHAT_IS_TRIED: Final = "a ring"


def examine(library: Library, ring_bytes: int) -> tuple[DeviceReport, ...]:
    """Try all devices with the queue pair of a link, and with a ring of `ring_bytes`."""
    return tuple(_examine(library, name, ring_bytes) for name in device_names(library))


def _examine(library: Library, name: str, ring_bytes: int) -> DeviceReport:
    try:
        device = Device(library, name)
    except ResourceError as error:
        return DeviceReport(name, lack=str(error))
    report = DeviceReport(
        name,
        tuple(gid.ip for gid in device.gids),
        min(device.limits.reads, device.limits.reads_served),
    )
    try:
        lack = _refusal(lambda: Equipment.of(Regions(device), device.best_gid).close())
        if lack:
            return dataclasses.replace(report, lack=lack)
        access = library.LOCAL_WRITE | library.REMOTE_READ | library.REMOTE_WRITE
        refused = _refusal(lambda: Buffer(device, ring_bytes, access, WHAT_IS_TRIED).close())
        return dataclasses.replace(report, too_little_memory=refused)
    finally:
        device.close()


def _refusal(attempt: Callable[[], None]) -> str:
    try:
        attempt()
    except ResourceError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    found = examine(pyverbs.load(), TransportSettings().ring_bytes)
    sys.stdout.write(json.dumps([dataclasses.asdict(report) for report in found]))
