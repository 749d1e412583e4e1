"""One reliable-connected queue pair: requests that are posted and reused, completions that count.

Everything here is of one thread. The send queue completes in order, so only some requests ask for
a completion (they are *signalled*); the number of one says that all before it are done as well.
What is under way is counted, as a completion queue that overflows loses entries without a word.
Two queue pairs of a link share one completion queue, so that there is one to poll and to wait for.

The life of a queue pair::

    QueuePair() ── INIT: receives can be posted ── connect(peer's card) ── RTS ── close()

`close` comes before its regions' and its device's: once it is gone, no peer reads or writes here.
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
_RECEIVE: Final = 1 << 62  # in the number of a receive, which is that of its buffer
_BESIDE: Final = 1 << 61  # where the second of two queue pairs begins to number its requests
POLL_MAX: Final = 16
"""Completions that are taken at a time."""

# A lost peer is given up after about 4 s: 0.5 s (4.096 µs * 2**17), seven times; a count of 7
# retries would mean for ever to soft-RoCE.
TIMEOUT: Final = 17
_RETRIES: Final = 6
# 0.64 ms between attempts at a peer without receive buffers; credits keep that from happening.
_RNR_TIMER: Final = 12
_RNR_RETRIES: Final = 6
_HOP_LIMIT: Final = 64


@dataclass(frozen=True, slots=True)
class Card:
    """What a queue pair must know of its peer; 32 bytes on the wire, little-endian."""

    number: int
    """Of the queue pair."""
    first_packet: int
    """The number of its first packet: random, so that packets of the past fit nowhere."""
    gid: str
    """Its device's address, as IPv6."""
    lid: int
    mtu: int
    reads_served: int
    """READs that may be under way towards it at a time."""

    FORM: ClassVar = struct.Struct("<II16sHBB4x")

    def encode(self) -> bytes:
        """Return the bytes to send."""
        gid = ipaddress.IPv6Address(self.gid).packed
        return self.FORM.pack(
            self.number, self.first_packet, gid, self.lid, self.mtu, self.reads_served
        )

    @classmethod
    def decode(cls, content: bytes) -> Card:
        """Read what `encode` wrote."""
        number, first_packet, gid, lid, mtu, reads_served = cls.FORM.unpack(content)
        return cls(number, first_packet, str(ipaddress.IPv6Address(gid)), lid, mtu, reads_served)


class Request:
    """A work request that is posted again and again: pyverbs leaks what is made per message."""

    __slots__ = ("_closed", "element", "work")

    def __init__(self, device: Device, opcode: int, lkey: int) -> None:
        """Be a request with memory of the region `lkey` on this side."""
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
    """A queue pair, its completion queue and the descriptor that tells of completions."""

    def __init__(
        self,
        device: Device,
        gid: GidEntry,
        sends: int,
        receives: int,
        *,
        besides: int = 0,
        beside: QueuePair | None = None,
    ) -> None:
        """Make one that may have so many sends and receives under way; its peer is yet to come.

        A second one stands `beside` another, which polls for both, and keeps room for as many
        completions `besides` its own; the second one is closed first. Raises NoVerbsError if the
        device has no room for it.
        """
        library, limits = device.library, device.limits
        self.device: Final = device
        self._gid = gid
        self.sends_max: Final = min(sends, limits.work_requests, limits.completions // 2)
        """Requests that may be under way."""
        self.receives_max: Final = min(receives, limits.work_requests, limits.completions // 2)
        self.posted = 0 if beside is None else _BESIDE
        """The number of the next request."""
        self.completed = self.posted
        """Requests before this number are done."""
        self.reads_max = 0
        """READs that may be under way, once connected."""
        self._first_packet = secrets.randbits(24)
        self.fd = -1
        """Tells of completions; −1 if another queue pair's does."""
        self._closed = False
        self._second: QueuePair | None = None
        self._queue: Any = None
        self._channel: Any = None
        self._pair: Any = None
        self._receives: list[Any] = []
        access = library.LOCAL_WRITE | library.REMOTE_READ | library.REMOTE_WRITE
        try:
            if beside is None:
                self._tell(self.sends_max + self.receives_max + besides)
            queue = self._queue if beside is None else beside._queue
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
            # Given attributes it goes to INIT: in RESET no receive can be posted.
            self._pair = library.QP(device.domain, wanted, self._attributes)
        except library.Error as error:
            self.close()
            lack = f"RDMA device {device.name!r} has no room for another queue pair: {error}"
            raise NoVerbsError(lack, f"name another, {OR_TCP}") from error
        except NoVerbsError:
            self.close()
            raise
        if beside is not None:
            beside._second = self

    def _tell(self, entries: int) -> None:
        """Make what tells of completions."""
        device = self.device
        with descriptors_lock:  # or the new descriptor may be that of another thread
            before = _event_descriptors()
            self._channel = device.library.CompChannel(device.context)
            self.fd = _descriptor_of(self._channel, before)
        os.set_blocking(self.fd, False)
        self._queue = device.library.CQ(device.context, entries, None, self._channel, 0)

    @property
    def card(self) -> Card:
        """What the peer must know."""
        device = self.device
        return Card(
            int(self._pair.qp_num),
            self._first_packet,
            self._gid.address,
            device.lid,
            device.limits.mtu,
            device.limits.reads_served,
        )

    def connect(self, peer: Card) -> None:
        """Be ready to send to, and to receive from `peer`. Raises NoVerbsError if that fails."""
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
            self._pair.to_rts(attributes)  # by way of RTR
        except library.Error as error:
            lack = (
                f"RDMA device {self.device.name!r} reaches no queue pair at {_ip(peer.gid)} from "
                f"{self._gid.ip}: {error}"
            )
            raise NoVerbsError(lack, f"join the networks of both devices, {OR_TCP}") from error

    # --- sending -------------------------------------------------------------------------------

    @property
    def room(self) -> int:
        """How many requests may be posted now."""
        return self.sends_max - (self.posted - self.completed)

    def post(
        self, request: Request, local: int, nbytes: int, remote: int, rkey: int, flags: int
    ) -> None:
        """Post `request` for these bytes; `remote` and `rkey` are 0 for SEND.

        There must be `room`, and from time to time one with SIGNALED among the `flags`. Raises
        LinkBrokenError.
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
            msg = f"RDMA device {self.device.name!r} takes no request: {error}"
            raise LinkBrokenError(msg, "verbs: cannot send") from error
        self.posted = number + 1

    # --- receiving -----------------------------------------------------------------------------

    def prepare_receives(self, region: Region, nbytes: int) -> None:
        """Make one receive of `nbytes` after the other out of `region`, and post them all."""
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
            msg = f"RDMA device {self.device.name!r} takes no receive: {error}"
            raise LinkBrokenError(msg, "verbs: cannot receive") from error

    # --- completions ---------------------------------------------------------------------------

    def poll(self, arrived: list[tuple[int, int]]) -> int:
        """Take completions, also of the one beside; append (slot, bytes) of receives.

        Returns how many completions there were. Raises LinkBrokenError for one that tells of an
        error.
        """
        try:
            count, completions = self._queue.poll(POLL_MAX)
        except self.device.library.Error as error:
            msg = f"RDMA device {self.device.name!r} tells of no completions: {error}"
            raise LinkBrokenError(msg, "verbs: cannot poll") from error
        for completion in completions:
            number = completion.wr_id
            if completion.status:
                raise self._failed(number, int(completion.status))
            if number < _BESIDE:
                self.completed = number + 1
            elif number & _RECEIVE:
                arrived.append((number ^ _RECEIVE, completion.byte_len))
            else:
                assert self._second is not None, "it is beside this one"
                self._second.completed = number + 1
        return int(count)

    def _failed(self, number: int, status: int) -> LinkBrokenError:
        words = status_in_words(status)
        what = "a receive" if number & _RECEIVE else f"request {number & ~_BESIDE:,}"
        msg = f"RDMA device {self.device.name!r}: {what} failed: {words}"
        return LinkBrokenError(msg, f"verbs: {words}")

    def arm(self) -> None:
        """Have the descriptor told of the next completion; those that are there must be polled.

        Raises LinkBrokenError.
        """
        try:
            self._queue.req_notify()
        except self.device.library.Error as error:
            msg = f"RDMA device {self.device.name!r} does not tell of completions: {error}"
            raise LinkBrokenError(msg, "verbs: cannot wait") from error

    def take_event(self) -> None:
        """Take note of what the descriptor was told, so that it can tell again.

        Each `arm` makes it tell once.
        """
        try:
            self._channel.get_cq_event(self._queue)
        except self.device.library.Error:
            return  # nothing was told: the descriptor does not wait
        self._queue.ack_events(1)

    # --- the end -------------------------------------------------------------------------------

    def close(self) -> None:
        """Destroy it, what is under way included; again does nothing."""
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
    """Return an address in the only form that pyverbs reads: eight groups of four digits."""
    return ipaddress.IPv6Address(gid).exploded


def _ip(gid: str) -> str:
    parsed = ipaddress.IPv6Address(gid)
    return str(parsed.ipv4_mapped or parsed)


def _event_descriptors() -> frozenset[int]:
    """Return the descriptors of this process that tell of verbs' events."""
    found = set()
    for path in _DESCRIPTORS.iterdir():
        try:
            if "infinibandevent" in os.readlink(path):
                found.add(int(path.name))
        except OSError:
            continue  # that of the listing itself
    return frozenset(found)


def _descriptor_of(channel: Any, before: frozenset[int]) -> int:
    """Return the descriptor of a channel just made; pyverbs 44 does not tell it."""
    fd = getattr(channel, "fd", None)
    if fd is not None:
        return int(fd)
    new = _event_descriptors() - before
    if not new:
        lack = "the descriptor of a new RDMA completion channel is not to be found in /proc/self/fd"
        raise NoVerbsError(lack, OR_TCP.removeprefix("or "))
    return max(new)
