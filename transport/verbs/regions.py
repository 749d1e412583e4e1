"""The regions of one device: rings and mirrors, each registered once, however many links use it."""

from __future__ import annotations

from typing import Final

from .device import Device, Region


class Regions:
    """What is registered with a device, by owner."""

    def __init__(self, device: Device) -> None:
        """Have nothing registered yet."""
        self.device: Final = device
        self.users = 0
        """Links that use the device."""
        self.failed = False
        """Whether the device could not serve another one."""
        # The owner is kept: while it lives, nobody else has its identity.
        self._found: dict[tuple[int, int], tuple[object, Region]] = {}

    def of(self, owner: object, address: int, nbytes: int, access: int, what: str) -> Region:
        """Return the region of `owner`'s memory; registers it when asked first.

        Raises ResourceError if it cannot be registered.
        """
        found = self._found.get((id(owner), access))
        if found is None:
            region = self.device.register(address, nbytes, access, what)
            self._found[id(owner), access] = (owner, region)
            return region
        return found[1]

    def close(self) -> None:
        """Make all keys useless; after the queue pairs."""
        for _, region in self._found.values():
            region.close()
        self._found.clear()
