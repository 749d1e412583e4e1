"""RDMA devices: their names and limits, and the memory registered with them.

A device is usable if it has an active port with an address (GID), and limits high enough for the
queue pairs of links. Of several, the one with the host's own IP address is used, as RoCE devices
have the addresses of their network interfaces, unless the settings name one.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import mmap
import resource
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ...configs.errors import ResourceError
from ...configs.units import MIB
from ..links.link_header import DATA_BYTES_MAX
from .library import Library, NoVerbsError, descriptors_lock

GIDS_MAX: Final = 64
READS_WANTED: Final = 16
"""READs of one queue pair under way at a time: more would hide no more latency."""
REQUESTS_WANTED: Final = 128
"""Work requests of one queue that a link needs."""
_COMPLETIONS_WANTED: Final = 2 * REQUESTS_WANTED
OR_TCP: Final = "or set transport.between_hosts to tcp"


@dataclass(frozen=True, slots=True)
class DeviceLimits:
    """The limits of a device that queue pairs of links depend on."""

    work_requests: int
    """Of one queue."""
    completions: int
    """Of one completion queue."""
    reads: int
    """READs of one queue pair that the device starts and works on at a time."""
    reads_served: int
    """READs of the peer that it serves at a time."""
    mtu: int
    """Of the active port, as verbs encode it: 5 is 4096 bytes."""
    message_bytes: int
    """The largest message."""


@dataclass(frozen=True, slots=True)
class GidEntry:
    """One address of a device."""

    index: int
    address: str
    """As IPv6; for RoCE the interface's address, an IPv4 one mapped."""

    @property
    def ip(self) -> str:
        """The IP address that it encodes."""
        parsed = ipaddress.IPv6Address(self.address)
        return str(parsed.ipv4_mapped or parsed)


def device_names(library: Library) -> tuple[str, ...]:
    """Return the names of this machine's devices, in order; none if there are none."""
    try:
        devices = library.get_device_list()
    except library.Error:
        return ()  # pyverbs raises it if there is none
    names = [one.name for one in devices]
    return tuple(sorted(one.decode() if isinstance(one, bytes) else str(one) for one in names))


class Device:
    """One opened device, and its protection domain.

    Regions and queue pairs refer to it; `close` it after them.
    """

    def __init__(self, library: Library, name: str) -> None:
        """Open the device `name`; raises NoVerbsError if it is not usable."""
        self.library: Final = library
        self.name: Final = name
        self._closed = False
        try:
            with descriptors_lock:
                self.context: Any = library.Context(name=name)
        except library.Error as error:
            lack = f"RDMA device {name!r} cannot be opened ({error})"
            raise NoVerbsError(lack, f"name another, {OR_TCP}") from error
        try:
            self.port: Final = self._active_port()
            self.gids: Final = self._find_gids()
            self.limits: Final = self._find_limits()
            self.lid: Final = int(self.context.query_port(self.port).lid)
            self.domain: Any = library.PD(self.context)
        except library.Error as error:
            self._close_context()
            lack = f"RDMA device {name!r} does not answer ({error})"
            raise NoVerbsError(lack, f"name another, {OR_TCP}") from error
        except BaseException:
            self._close_context()
            raise

    def _close_context(self) -> None:
        with descriptors_lock:
            self.library.close(self.context)

    def _active_port(self) -> int:
        ports = int(self.context.query_device().phys_port_cnt)
        for port in range(1, ports + 1):
            if int(self.context.query_port(port).state) == self.library.PORT_ACTIVE:
                return port
        lack = f"RDMA device {self.name!r} has no active port"
        raise NoVerbsError(lack, f"bring its network up, {OR_TCP}")

    def _find_gids(self) -> tuple[GidEntry, ...]:
        """Return the addresses of RoCE 2, or all if there are none of it (InfiniBand)."""
        found = []
        for entry in self.context.query_gid_table(GIDS_MAX):
            if int(entry.port_num) == self.port:
                index = int(entry.gid_index)
                gid = str(self.context.query_gid(self.port, index))
                address = str(ipaddress.IPv6Address(gid))
                found.append((int(entry.gid_type), GidEntry(index, address)))
        kinds = {kind for kind, _ in found}
        gids = tuple(one for kind, one in found if kind == max(kinds))
        if not gids:
            lack = f"RDMA device {self.name!r} has no address"
            raise NoVerbsError(lack, f"give its interface one, {OR_TCP}")
        return gids

    def _find_limits(self) -> DeviceLimits:
        attributes = self.context.query_device()
        port = self.context.query_port(self.port)
        limits = DeviceLimits(
            int(attributes.max_qp_wr),
            int(attributes.max_cqe),
            min(READS_WANTED, int(attributes.max_qp_init_rd_atom)),
            min(READS_WANTED, int(attributes.max_qp_rd_atom)),
            int(port.active_mtu),
            int(port.max_msg_sz),
        )
        if min(limits.reads, limits.reads_served) < 1:
            lack = (
                f"RDMA device {self.name!r} allows no READ (max_qp_rd_atom "
                f"{limits.reads_served}, max_qp_init_rd_atom {limits.reads})"
            )
            raise NoVerbsError(lack, f"name another, {OR_TCP}")
        for what, offered, wanted in (
            ("max_qp_wr", limits.work_requests, REQUESTS_WANTED),
            ("max_cqe", limits.completions, _COMPLETIONS_WANTED),
            ("max_msg_sz", limits.message_bytes, DATA_BYTES_MAX),
        ):
            if offered < wanted:
                lack = (
                    f"RDMA device {self.name!r} offers too little: {what} is {offered:,}, and a "
                    f"link takes {wanted:,}"
                )
                raise NoVerbsError(lack, f"name another, {OR_TCP}")
        return limits

    def gid_for(self, ip: str) -> GidEntry | None:
        """Return the address that encodes `ip`, None if the device does not have it."""
        return next((one for one in self.gids if one.ip == ip), None)

    @property
    def best_gid(self) -> GidEntry:
        """The address to use where no IP address decides: a routable one, if there is any."""
        routed = [one for one in self.gids if not ipaddress.ip_address(one.ip).is_link_local]
        return routed[0] if routed else self.gids[0]

    def register(self, address: int, nbytes: int, access: int, what: str) -> Region:
        """Register memory of this process; `what` names it. Raises ResourceError if refused.

        Its pages are locked in memory, even without the mapping, until the region is closed.
        """
        try:
            handle = self.library.MR(self.domain, nbytes, access, address=address)
        except self.library.Error as error:
            raise self._refusal(nbytes, what, error) from error
        return Region(self.library, handle, address, nbytes)

    def _refusal(self, nbytes: int, what: str, error: Exception) -> ResourceError:
        size = f"{max(1, nbytes // MIB):,} MiB"
        if getattr(error, "error_code", None) != errno.ENOMEM:
            msg = f"{what} of {size} cannot be registered with RDMA device {self.name!r}: {error}"
            return ResourceError(msg)
        limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
        allowed = "unlimited" if limit == resource.RLIM_INFINITY else f"{limit // 1024:,} KiB"
        msg = (
            f"{what} of {size} cannot be registered with RDMA device {self.name!r}: no memory can "
            f"be locked (the limit is {allowed}); raise it (ulimit -l unlimited, or memlock in "
            "/etc/security/limits.conf) or lower transport.ring_bytes"
        )
        return ResourceError(msg)

    def close(self) -> None:
        """Close it; calling it again does nothing."""
        if not self._closed:
            self._closed = True
            self.library.close(self.domain)
            self._close_context()


class Region:
    """Registered memory; closing the region does not free the memory."""

    __slots__ = ("_handle", "_library", "address", "lkey", "nbytes", "rkey")

    def __init__(self, library: Library, handle: Any, address: int, nbytes: int) -> None:
        self._library = library
        self._handle = handle
        self.address: Final = address
        self.nbytes: Final = nbytes
        self.lkey: Final = int(handle.lkey)
        """The key by which this host's requests name the memory."""
        self.rkey: Final = int(handle.rkey)
        """The key by which a peer's requests name it."""

    def close(self) -> None:
        """Deregister the memory, when no request names it any more; again does nothing."""
        handle, self._handle = self._handle, None
        if handle is not None:
            self._library.close(handle)


class Buffer:
    """Private memory with its region."""

    def __init__(self, device: Device, nbytes: int, access: int, what: str) -> None:
        """Allocate and register; raises ResourceError if the machine refuses."""
        self._memory = mmap.mmap(-1, nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.view: memoryview = memoryview(self._memory)
        array = np.frombuffer(self._memory, np.uint8)
        self.address: Final = int(array.ctypes.data)
        del array
        try:
            self.region: Final = device.register(self.address, nbytes, access, what)
        except BaseException:
            self.view.release()
            self._memory.close()
            raise

    def close(self) -> None:
        """Release region and memory (when the last view is gone); again does nothing."""
        self.region.close()
        self.view.release()
        with contextlib.suppress(BufferError):
            self._memory.close()
