"""Chooses verbs or TCP for each link, by the settings, the devices and earlier failures.

`auto` takes verbs if both hosts have a usable device. If a link over verbs breaks because of the
device, or falls silent, the next links to that host use TCP for a time, which grows with each
failure; nothing is lost, as a link always resumes at its position. An open link is not changed:
verbs are tried again when a link is dialled after that time.
"""

from __future__ import annotations

import ipaddress
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from ...configs.errors import ResourceError
from ...configs.settings import TransportSettings
from ...configs.units import NS_PER_MS
from ..links.link import LinkBrokenError
from ..links.statistics import Declined
from ..tcp.connection import TcpConnection
from . import library as pyverbs
from .connection import VerbsConnection
from .device import Device, GidEntry, device_names
from .library import Library, NoVerbsError
from .link_resources import Data, LinkResources
from .negotiation import Negotiation
from .regions import Regions

VERBS: Final = 1
"""The bit of a handshake's carriers."""
_DOUBLINGS_MAX: Final = 6
_DEVICES: Final = Path("/sys/class/infiniband")
_DATA: Final = {"read": Data.READ, "write": Data.WRITE, "send": Data.SEND}

_NO_DEVICE: Final = "no RDMA device on this machine"
_OTHERWISE: Final = (
    "whale-ray doctor looks for them; set transport.between_hosts to tcp, or to auto"
)
_log = logging.getLogger(__name__)

Load: TypeAlias = Callable[[], Library]
"""Returns the library; raises NoVerbsError."""


def load_where_devices_are() -> Library:
    """Return pyverbs; raises NoVerbsError at once if the kernel has no device."""
    try:
        names = os.listdir(_DEVICES)
    except OSError:
        names = []
    if not names:
        raise NoVerbsError(_NO_DEVICE, _OTHERWISE)
    return pyverbs.load()


@dataclass(slots=True)
class _AvoidedHost:
    """A host to which links over verbs broke."""

    reason: str = ""
    failures: int = 0
    """In a row."""
    until_ns: int = 0
    wait_ns: int = 0
    open_since_ns: int | None = None
    """When a link over verbs was opened again; None if none was."""


class Carriers:
    """The carriers of one host, and the devices that it has opened."""

    def __init__(self, settings: TransportSettings, load: Load | None = None) -> None:
        """Open the devices. Raises NoVerbsError if the settings insist on verbs without any."""
        self._insists: Final = settings.between_hosts == "verbs"
        self._data = _DATA[settings.verbs_data]
        self._retry_ns = settings.verbs_retry_ms * NS_PER_MS
        self._wanted = settings.rdma_device
        self._devices: dict[str, Regions] = {}
        self._avoided: dict[str, _AvoidedHost] = {}
        self.declined: Final[dict[str, Declined]] = {}
        """By host: why the last link to it does not use verbs."""
        self.listens_at = ""
        """The host's address, if it listens: of several devices, the one with it is used."""
        self.why_not = ""
        """Why verbs are not offered, in words; empty if they are."""
        if settings.between_hosts == "tcp":
            self.why_not = "transport.between_hosts is tcp"
            return
        try:
            self._library = (load or load_where_devices_are)()
            self._open()
        except NoVerbsError as error:
            if self._insists:
                raise
            self.why_not = error.lack

    def _open(self) -> None:
        """Open the device of the settings, or all usable ones, unless they are open."""
        names = (self._wanted,) if self._wanted else device_names(self._library)
        reasons = []
        for name in names:
            if name in self._devices:
                continue
            try:
                self._devices[name] = Regions(Device(self._library, name))
            except NoVerbsError as error:
                reasons.append(error)
        if not self._devices:
            if reasons:
                raise reasons[0]
            raise NoVerbsError(_NO_DEVICE, _OTHERWISE)

    @property
    def devices(self) -> tuple[str, ...]:
        """The names of the devices that are open."""
        return tuple(self._devices)

    @property
    def offered(self) -> int:
        """The carriers to offer to a host that dials, see `Responder`."""
        return 0 if self.why_not else VERBS

    def offered_to(self, host: str, now_ns: int) -> int:
        """Return the carriers to offer to `host` when dialling it, see `Initiator`."""
        return 0 if self._avoids(host, now_ns) else self.offered

    def _avoids(self, host: str, now_ns: int) -> bool:
        avoided = self._avoided.get(host)
        return avoided is not None and now_ns < avoided.until_ns

    def take_over(
        self, connection: TcpConnection, now_ns: int
    ) -> TcpConnection | VerbsConnection | None:
        """Return the connection for a link, over an authenticated TCP connection.

        None while the hosts still negotiate. Raises LinkBrokenError if the settings insist on
        verbs and they cannot be used.
        """
        side = connection.side
        host = side.peer.host
        if not isinstance(connection.step, Negotiation):
            if not side.carriers & VERBS:
                return self._without(connection, host, self.why_not or self._before(host), now_ns)
            if not side.peers_carriers & VERBS:
                return self._without(connection, host, "it offers none", now_ns)
            # Within a machine, a connection may have the peer's address on both sides.
            addresses = self.listens_at, str(connection.sock.getsockname()[0])
            negotiation = Negotiation(
                lambda: self._prepare(host, addresses, now_ns), self._data, side.deadline_ns
            )
            connection.go_on(negotiation, negotiation.first)
            return None
        agreed = connection.step.take_over()
        if agreed is None:
            return self._without(connection, host, connection.step.why_not, now_ns)
        self.declined.pop(host, None)
        if host in self._avoided:
            self._avoided[host].open_since_ns = now_ns
        return VerbsConnection(connection, agreed)

    def _without(
        self, connection: TcpConnection, host: str, why_not: str, now_ns: int
    ) -> TcpConnection:
        """Use the TCP connection for the link, unless the settings insist on verbs."""
        since_ns = self.declined[host].since_ns if host in self.declined else now_ns
        self.declined[host] = Declined(why_not, since_ns)
        if self._insists:
            msg = f"no RDMA verbs with host {host!r}: {why_not}"
            raise LinkBrokenError(msg, "no verbs")
        return connection

    def _prepare(self, host: str, addresses: tuple[str, ...], now_ns: int) -> LinkResources:
        if self._avoids(host, now_ns):
            raise NoVerbsError(self._before(host))
        self._close_failed()
        self._open()  # a device may have been added, or be back
        regions, gid = self._choose(addresses)
        try:
            return LinkResources.of(regions, gid)
        except ResourceError:
            regions.failed = True
            raise

    def _close_failed(self) -> None:
        """Close devices that have failed, once no link needs them any more."""
        for name, regions in tuple(self._devices.items()):
            if regions.failed and not regions.users:
                del self._devices[name]
                regions.close()
                regions.device.close()

    def _before(self, host: str) -> str:
        avoided = self._avoided.get(host)
        return f"a link over verbs broke before ({avoided.reason if avoided else 'it did'})"

    def _choose(self, addresses: tuple[str, ...]) -> tuple[Regions, GidEntry]:
        """Return the device with the first of `addresses` that any device has, or the first one."""
        for address in filter(None, addresses):
            ip = str(ipaddress.ip_address(address.partition("%")[0]))
            for regions in self._devices.values():
                gid = regions.device.gid_for(ip)
                if gid is not None:
                    return regions, gid
        regions = next(iter(self._devices.values()))
        return regions, regions.device.best_gid

    def broken(self, host: str, reason: str, now_ns: int) -> None:
        """Handle that a link over verbs broke; `reason` as of `LinkBrokenError`."""
        if self._insists or not (reason.startswith("verbs") or reason == "silent"):
            return
        avoided = self._avoided.setdefault(host, _AvoidedHost())
        since_ns = avoided.open_since_ns
        if since_ns is not None and now_ns - since_ns > avoided.wait_ns:
            avoided.failures = 0  # the last link was open for longer than the wait
        avoided.wait_ns = self._retry_ns << min(avoided.failures, _DOUBLINGS_MAX)
        avoided.failures += 1
        avoided.until_ns = now_ns + avoided.wait_ns
        avoided.reason, avoided.open_since_ns = reason, None
        _log.warning(
            "the link to host %r over RDMA verbs broke (%s): it goes on over TCP, and nothing is "
            "lost; links dialled in %g s or later may be of verbs again",
            host,
            reason,
            avoided.wait_ns / 1e9,
        )

    def close(self) -> None:
        """Close the devices, after all connections."""
        for regions in self._devices.values():
            regions.close()
            regions.device.close()
        self._devices.clear()
