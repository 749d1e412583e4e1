"""Probes the RDMA devices of this machine: makes a link's queue pairs and registers a ring.

`python -m whale_ray.transport.verbs.probe` writes the reports as JSON. The doctor runs it in a
process of its own, as a library built for another kernel or libibverbs may crash the process.
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
from .library import Library
from .link_resources import LinkResources
from .regions import Regions
from .reports import DeviceReport

WHAT_IS_TRIED: Final = "a ring"


def probe(library: Library, ring_bytes: int) -> tuple[DeviceReport, ...]:
    """Try all devices with the queue pair of a link, and with a ring of `ring_bytes`."""
    return tuple(_probe_device(library, name, ring_bytes) for name in device_names(library))


def _probe_device(library: Library, name: str, ring_bytes: int) -> DeviceReport:
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
        lack = _refusal(lambda: LinkResources.of(Regions(device), device.best_gid).close())
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
    found = probe(pyverbs.load(), TransportSettings().ring_bytes)
    sys.stdout.write(json.dumps([dataclasses.asdict(report) for report in found]))
