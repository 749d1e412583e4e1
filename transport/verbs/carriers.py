"""What else than TCP could carry a host's links: chosen by the settings, the machine, the past.

`auto` takes verbs where both hosts have a usable device. If a link over verbs breaks for a reason
that lies with the device, or falls silent, the next ones to that host go over TCP: nothing is lost,
as a link always goes on where it was.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeAlias

from ...configs.settings import TransportSettings
from ..links.link import LinkBrokenError
from ..tcp.connection import TcpConnection
from . import library as pyverbs
from .connection import VerbsConnection
from .device import Device, GidEntry, device_names
from .equipment import Data, Equipment
from .library import Library, NoVerbsError
from .negotiation import Negotiation
from .regions import Regions

VERBS: Final = 1
"""The bit of a handshake's carriers."""
_DEVICES: Final = Path("/sys/class/infiniband")
_DATA: Final = {"read": Data.READ, "write": Data.WRITE, "send": Data.SEND}

Load: TypeAlias = Callable[[], Library]
"""Returns the library; raises NoVerbsError."""


def load_where_devices_are() -> Library:
    """Return pyverbs, which is not even looked for where the kernel knows of no device."""
    try:
        names = os.listdir(_DEVICES)
    except OSError:
        names = []
    if not names:
        msg = (
            "no RDMA device on this machine (whale-ray doctor looks for them); "
            "set transport.between_hosts to tcp, or to auto"
        )
        raise NoVerbsError(msg)
    return pyverbs.load()


class Carriers:
    """The carriers of one host, and the devices that it has opened."""

    def __init__(self, settings: TransportSettings, load: Load | None = None) -> None:
        """Look what there is. Raises NoVerbsError if the settings insist on verbs in vain."""
        self._insists: Final = settings.between_hosts == "verbs"
        self._data = _DATA[settings.verbs_data]
        self._devices: dict[str, Regions] = {}
        self._avoided: dict[str, str] = {}
        self.declined: Final[dict[str, str]] = {}
        """By host: why the last link to it is not of verbs, in words."""
        self.why_not = ""
        """Why verbs cannot be offered, in words; empty if they can."""
        if settings.between_hosts == "tcp":
            self.why_not = "transport.between_hosts is tcp"
            return
        try:
            library = (load or load_where_devices_are)()
            self._open(library, settings.rdma_device)
        except NoVerbsError as error:
            if self._insists:
                raise
            self.why_not = str(error)

    def _open(self, library: Library, wanted: str) -> None:
        """Open the device that is wanted, or all that can serve."""
        names = (wanted,) if wanted else device_names(library)
        reasons = []
        for name in names:
            try:
                self._devices[name] = Regions(Device(library, name))
            except NoVerbsError as error:
                reasons.append(error)
        if not self._devices:
            if reasons:
                raise reasons[0]
            msg = "no RDMA device on this machine; set transport.between_hosts to tcp, or to auto"
            raise NoVerbsError(msg)

    def offered_to(self, host: str = "") -> int:
        """Return the carriers to offer, as of `Initiator`; `host` is whom we dial, if we do."""
        return 0 if self.why_not or host in self._avoided else VERBS

    def take_over(self, connection: TcpConnection) -> TcpConnection | VerbsConnection | None:
        """Return what carries a link over a connection that has proved itself, as far as it has.

        None while the hosts still agree on it. Raises LinkBrokenError if the settings insist on
        verbs, and there are none.
        """
        side = connection.side
        host = side.peer.host
        if not isinstance(connection.step, Negotiation):
            if not side.carriers & VERBS:
                return self._without(connection, host, self.why_not or self._before(host))
            if not side.peers_carriers & VERBS:
                return self._without(connection, host, "it offers none")
            address = str(connection.sock.getsockname()[0])
            negotiation = Negotiation(
                lambda: self._prepare(host, address), self._data, side.deadline_ns
            )
            connection.go_on(negotiation, negotiation.first)
            return None
        agreed = connection.step.take_over()
        if agreed is None:
            return self._without(connection, host, connection.step.why_not)
        self.declined.pop(host, None)
        return VerbsConnection(connection, agreed)

    def _without(self, connection: TcpConnection, host: str, why_not: str) -> TcpConnection:
        """Let the connection itself carry the link, unless the settings insist on verbs."""
        self.declined[host] = why_not
        if self._insists:
            msg = f"no RDMA verbs with host {host!r}: {why_not}"
            raise LinkBrokenError(msg, "no verbs")
        return connection

    def _prepare(self, host: str, address: str) -> Equipment:
        if host in self._avoided:
            raise NoVerbsError(self._before(host))
        return Equipment.of(*self._choose(address))

    def _before(self, host: str) -> str:
        return f"a link over verbs broke before ({self._avoided.get(host, 'it did')})"

    def _choose(self, address: str) -> tuple[Regions, GidEntry]:
        """Return the device that bears `address`, or the first one."""
        ip = str(ipaddress.ip_address(address.partition("%")[0]))
        for regions in self._devices.values():
            gid = regions.device.gid_for(ip)
            if gid is not None:
                return regions, gid
        regions = next(iter(self._devices.values()))
        return regions, regions.device.best_gid

    def broken(self, host: str, reason: str) -> None:
        """Take note that a link over verbs broke: `reason` as of `LinkBrokenError`."""
        if not self._insists and (reason.startswith("verbs") or reason == "silent"):
            self._avoided[host] = reason

    def close(self) -> None:
        """Close the devices, after all connections."""
        for regions in self._devices.values():
            regions.close()
            regions.device.close()
        self._devices.clear()
