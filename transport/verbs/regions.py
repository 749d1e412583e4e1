"""The regions of one device: rings and mirrors, each registered once for all links that use it."""

from __future__ import annotations

from typing import Final

from .device import Device, Region


class Regions:
    """The memory regions registered with a device, by owner."""

    def __init__(self, device: Device) -> None:
        """Begin without regions."""
        self.device: Final = device
        self.users = 0
        """Links that use the device."""
        self.failed = False
        """Whether the device refused another link."""
        # The owner is referred to as well: while it lives, no other object has its id.
        self._found: dict[tuple[int, int], tuple[object, Region]] = {}

    def of(self, owner: object, address: int, nbytes: int, access: int, what: str) -> Region:
        """Return the region of `owner`'s memory; registers it at the first call.

        Raises ResourceError if it cannot be registered.
        """
        found = self._found.get((id(owner), access))
        if found is None:
            region = self.device.register(address, nbytes, access, what)
            self._found[id(owner), access] = (owner, region)
            return region
        return found[1]

    def close(self) -> None:
        """Deregister all memory; after the queue pairs are closed."""
        for _, region in self._found.values():
            region.close()
        self._found.clear()
