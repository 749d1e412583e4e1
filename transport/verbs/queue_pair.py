"""One reliable-connected queue pair: reusable work requests, and counted completions.

Only one thread uses a queue pair. The send queue completes in order, so only some requests ask for
a completion (they are *signalled*); the number of one shows that all before it are done as well.
Requests under way are counted, as a completion queue that overflows drops entries silently.
Two queue pairs of a link share one completion queue, so that there is one to poll and to wait for.

The life of a queue pair::

    QueuePair() ── INIT: receives can be posted ── connect(peer's address) ── RTS ── close()

Close it before its regions and its device: once it is destroyed, no peer can read or write here.
"""

from __future__ import annotations

import ipaddress
import os
import secrets
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

from ..links.link import LinkBrokenError
from .device import OR_TCP, Device, GidEntry, Region
from .library import NoVerbsError, descriptors_lock, status_in_words

_DESCRIPTORS: Final = Path("/proc/self/fd")
_RECEIVE: Final = 1 << 62  # marks the number of a receive, whose other bits are its buffer's
_SECOND: Final = 1 << 61  # the first request number of the second of two queue pairs
POLL_MAX: Final = 16
"""Completions that are taken at a time."""

# A lost peer is given up after about 4 s: 0.5 s (4.096 µs * 2**17), seven times; with a count of 7,
# soft-RoCE would retry for ever.
TIMEOUT: Final = 17
_RETRIES: Final = 6
# 0.64 ms between attempts at a peer without receive buffers; credits keep that from happening.
_RNR_TIMER: Final = 12
_RNR_RETRIES: Final = 6
_HOP_LIMIT: Final = 64


@dataclass(frozen=True, slots=True)
class QueuePairAddress:
    """What a queue pair needs to connect to another; 32 bytes on the wire, little-endian."""

    number: int
    """Of the queue pair."""
    first_packet: int
    """The number of its first packet: random, so that packets of older connections do not fit."""
    gid: str
    """Its device's address, as IPv6."""
    lid: int
    mtu: int
    reads_served: int
    """READs of the peer that its device serves at a time."""

    FORM: ClassVar = struct.Struct("<II16sHBB4x")

    def encode(self) -> bytes:
        """Return the bytes to send."""
        gid = ipaddress.IPv6Address(self.gid).packed
        return self.FORM.pack(
            self.number, self.first_packet, gid, self.lid, self.mtu, self.reads_served
        )

    @classmethod
    def decode(cls, content: bytes) -> QueuePairAddress:
        """Read what `encode` wrote."""
        number, first_packet, gid, lid, mtu, reads_served = cls.FORM.unpack(content)
        return cls(number, first_packet, str(ipaddress.IPv6Address(gid)), lid, mtu, reads_served)


class WorkRequest:
    """A work request that is posted again and again: pyverbs leaks what is made per message."""

    __slots__ = ("_closed", "element", "work")

    def __init__(self, device: Device, opcode: int, lkey: int) -> None:
        """Create a request on memory of this side, in the region `lkey`."""
        library = device.library
        self.element: Final[Any] = library.SGE(0, 0, lkey)
        self.work: Final[Any] = library.SendWR(opcode=opcode, num_sge=1, sg=[self.element])
        self.work.sg_list = self.element  # the element itself, no copy: `post` fills it
        self._closed = False

    def close(self) -> None:
        """Free it; again does nothing, as pyverbs would free it twice."""
        if not self._closed:
            self._closed = True
            self.work.close()  # its list is the element


class QueuePair:
    """A queue pair, its completion queue and the descriptor that completions make readable."""

    def __init__(
        self,
        device: Device,
        gid: GidEntry,
        sends: int,
        receives: int,
        *,
        extra_completions: int = 0,
        shares_queue_of: QueuePair | None = None,
    ) -> None:
        """Create a queue pair for so many sends and receives under way, not connected yet.

        A second one `shares_queue_of` the first, its completion queue: the first polls for both,
        with room for `extra_completions` of the second, and is closed after it. Raises NoVerbsError
        if the device has no room for it.
        """
        library, limits = device.library, device.limits
        self.device: Final = device
        self._gid = gid
        self.sends_max: Final = min(sends, limits.work_requests, limits.completions // 2)
        """Requests that may be under way."""
        self.receives_max: Final = min(receives, limits.work_requests, limits.completions // 2)
        self.posted = 0 if shares_queue_of is None else _SECOND
        """The number of the next request."""
        self.completed = self.posted
        """Requests before this number are done."""
        self.reads_max = 0
        """READs that may be under way, once connected."""
        self._first_packet = secrets.randbits(24)
        self.fd = -1
        """Readable at completions; −1 if the first queue pair's is."""
        self._closed = False
        self._second: QueuePair | None = None
        self._queue: Any = None
        self._channel: Any = None
        self._pair: Any = None
        self._receives: list[Any] = []
        access = library.LOCAL_WRITE | library.REMOTE_READ | library.REMOTE_WRITE
        try:
            if shares_queue_of is None:
                self._create_completion_queue(
                    self.sends_max + self.receives_max + extra_completions
                )
            queue = self._queue if shares_queue_of is None else shares_queue_of._queue
            sizes = library.QPCap(
                max_send_wr=self.sends_max,
                max_recv_wr=self.receives_max,
                max_send_sge=1,
                max_recv_sge=1,
            )
            wanted = library.QPInitAttr(
                qp_type=library.RC, scq=queue, rcq=queue, cap=sizes, sq_sig_all=0
            )
            self._attributes = library.QPAttr(port_num=device.port)
            self._attributes.qp_access_flags = access
            # With attributes it is made in INIT: in RESET no receive can be posted.
            self._pair = library.QP(device.domain, wanted, self._attributes)
        except library.Error as error:
            self.close()
            lack = f"RDMA device {device.name!r} has no room for another queue pair: {error}"
            raise NoVerbsError(lack, f"name another, {OR_TCP}") from error
        except NoVerbsError:
            self.close()
            raise
        if shares_queue_of is not None:
            shares_queue_of._second = self

    def _create_completion_queue(self, entries: int) -> None:
        """Create the completion queue, its event channel and the descriptor."""
        device = self.device
        with descriptors_lock:  # or the new descriptor may be that of another thread
            before = _event_descriptors()
            self._channel = device.library.CompChannel(device.context)
            self.fd = _descriptor_of(self._channel, before)
        os.set_blocking(self.fd, False)
        self._queue = device.library.CQ(device.context, entries, None, self._channel, 0)

    @property
    def own_address(self) -> QueuePairAddress:
        """What the peer needs to connect to it."""
        device = self.device
        return QueuePairAddress(
            int(self._pair.qp_num),
            self._first_packet,
            self._gid.address,
            device.lid,
            device.limits.mtu,
            device.limits.reads_served,
        )

    def connect(self, peer: QueuePairAddress) -> None:
        """Connect to the queue pair `peer`. Raises NoVerbsError if that fails."""
        library, limits = self.device.library, self.device.limits
        attributes = self._attributes
        route = library.GlobalRoute(
            dgid=library.GID(_full(peer.gid)), sgid_index=self._gid.index, hop_limit=_HOP_LIMIT
        )
        self.reads_max = max(1, min(limits.reads, peer.reads_served))
        attributes.path_mtu = min(limits.mtu, peer.mtu)
        attributes.dest_qp_num = peer.number
        attributes.rq_psn, attributes.sq_psn = peer.first_packet, self._first_packet
        attributes.max_rd_atomic = self.reads_max
        attributes.max_dest_rd_atomic = limits.reads_served
        attributes.min_rnr_timer, attributes.rnr_retry = _RNR_TIMER, _RNR_RETRIES
        attributes.timeout, attributes.retry_cnt = TIMEOUT, _RETRIES
        attributes.ah_attr = library.AHAttr(
            gr=route, is_global=1, port_num=self.device.port, dlid=peer.lid
        )
        try:
            self._pair.to_rts(attributes)  # through RTR
        except library.Error as error:
            lack = (
                f"RDMA device {self.device.name!r} reaches no queue pair at {_ip(peer.gid)} from "
                f"{self._gid.ip}: {error}"
            )
            raise NoVerbsError(lack, f"join the networks of both devices, {OR_TCP}") from error

    # --- sending -------------------------------------------------------------------------------

    @property
    def room(self) -> int:
        """Number of requests that may be posted now."""
        return self.sends_max - (self.posted - self.completed)

    def post(
        self, request: WorkRequest, local: int, nbytes: int, remote: int, rkey: int, flags: int
    ) -> None:
        """Post `request` for these bytes; `remote` and `rkey` are 0 for SEND.

        There must be `room`, and some requests must have SIGNALED among the `flags`, or `room`
        never grows. Raises LinkBrokenError.
        """
        element, work = request.element, request.work
        element.addr = local
        element.length = nbytes
        work.wr_id = number = self.posted
        work.send_flags = flags
        if rkey:
            work.set_wr_rdma(rkey, remote)
        try:
            self._pair.post_send(work)
        except self.device.library.Error as error:
            msg = f"RDMA device {self.device.name!r} refuses a request: {error}"
            raise LinkBrokenError(msg, "verbs: cannot send") from error
        self.posted = number + 1

    # --- receiving -----------------------------------------------------------------------------

    def prepare_receives(self, region: Region, nbytes: int) -> None:
        """Divide `region` into receive buffers of `nbytes`, and post them all."""
        library = self.device.library
        for slot in range(self.receives_max):
            element = library.SGE(region.address + slot * nbytes, nbytes, region.lkey)
            receive = library.RecvWR(wr_id=_RECEIVE | slot, num_sge=1, sg=[element])
            element.close()  # the receive has copied it
            self._receives.append(receive)
            self.post_receive(slot)

    def post_receive(self, slot: int) -> None:
        """Let the peer fill buffer `slot` again. Raises LinkBrokenError."""
        try:
            self._pair.post_recv(self._receives[slot])
        except self.device.library.Error as error:
            msg = f"RDMA device {self.device.name!r} refuses a receive: {error}"
            raise LinkBrokenError(msg, "verbs: cannot receive") from error

    # --- completions ---------------------------------------------------------------------------

    def poll(self, arrived: list[tuple[int, int]]) -> int:
        """Take completions, also of the second queue pair; append (slot, bytes) of receives.

        Returns the number of completions. Raises LinkBrokenError for one with an error status.
        """
        try:
            count, completions = self._queue.poll(POLL_MAX)
        except self.device.library.Error as error:
            msg = f"RDMA device {self.device.name!r} cannot be polled for completions: {error}"
            raise LinkBrokenError(msg, "verbs: cannot poll") from error
        for completion in completions:
            number = completion.wr_id
            if completion.status:
                raise self._failed(number, int(completion.status))
            if number < _SECOND:
                self.completed = number + 1
            elif number & _RECEIVE:
                arrived.append((number ^ _RECEIVE, completion.byte_len))
            else:
                assert self._second is not None, "its number is the second queue pair's"
                self._second.completed = number + 1
        return int(count)

    def _failed(self, number: int, status: int) -> LinkBrokenError:
        words = status_in_words(status)
        what = "a receive" if number & _RECEIVE else f"request {number & ~_SECOND:,}"
        msg = f"RDMA device {self.device.name!r}: {what} failed: {words}"
        return LinkBrokenError(msg, f"verbs: {words}")

    def arm(self) -> None:
        """Make the descriptor readable at the next completion; then poll for those already there.

        Raises LinkBrokenError.
        """
        try:
            self._queue.req_notify()
        except self.device.library.Error as error:
            msg = f"RDMA device {self.device.name!r} cannot notify of completions: {error}"
            raise LinkBrokenError(msg, "verbs: cannot wait") from error

    def take_event(self) -> None:
        """Consume the event of the descriptor, so that `arm` can make it readable again.

        Each `arm` causes one event.
        """
        try:
            self._channel.get_cq_event(self._queue)
        except self.device.library.Error:
            return  # no event: the descriptor does not block
        self._queue.ack_events(1)

    # --- the end -------------------------------------------------------------------------------

    def close(self) -> None:
        """Destroy it with the requests under way; calling it again does nothing."""
        if self._closed:
            return
        self._closed = True
        library = self.device.library
        for part in (self._pair, self._queue):
            if part is not None:
                library.close(part)
        if self._channel is not None:
            with descriptors_lock:
                library.close(self._channel)
        for receive in self._receives:
            receive.close()


def _full(gid: str) -> str:
    """Return an address in the only form that pyverbs parses: eight groups of four digits."""
    return ipaddress.IPv6Address(gid).exploded


def _ip(gid: str) -> str:
    parsed = ipaddress.IPv6Address(gid)
    return str(parsed.ipv4_mapped or parsed)


def _event_descriptors() -> frozenset[int]:
    """Return the descriptors of this process that are for verbs' events."""
    found = set()
    for path in _DESCRIPTORS.iterdir():
        try:
            if "infinibandevent" in os.readlink(path):
                found.add(int(path.name))
        except OSError:
            continue  # that of the listing itself
    return frozenset(found)


def _descriptor_of(channel: Any, before: frozenset[int]) -> int:
    """Return the descriptor of a channel just made; pyverbs 44 has no attribute for it."""
    fd = getattr(channel, "fd", None)
    if fd is not None:
        return int(fd)
    new = _event_descriptors() - before
    if not new:
        lack = "the descriptor of a new RDMA completion channel is not in /proc/self/fd"
        raise NoVerbsError(lack, OR_TCP.removeprefix("or "))
    return max(new)
