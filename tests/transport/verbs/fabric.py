"""A pretended verbs library: devices, keys and queue pairs within this process, nothing hidden.

It keeps the rules that real devices keep, and is strict where they are silent: a completion queue
that overflows, a request that was never counted, memory named by a key that is gone. Requests are
carried out when somebody polls, in the order in which they were posted to their queue pair.
"""

from __future__ import annotations

import ctypes
import errno
import itertools
import os
import random
from collections import deque
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from whale_ray.transport.verbs.library import Library

SEND, WRITE, READ = 2, 0, 4
SIGNALED, FENCE = 2, 1
LOCAL_WRITE, REMOTE_WRITE, REMOTE_READ = 1, 2, 4
SUCCESS, BAD_LOCAL_KEY, FLUSHED, REFUSED, NO_ANSWER = 0, 4, 5, 10, 12


class FakeError(Exception):
    """As pyverbs' errors."""

    def __init__(self, message: str, error_code: int = -1) -> None:
        super().__init__(message)
        self.error_code = error_code


@dataclass
class FakeDevice:
    """What a device of the fabric can do; tests change it."""

    name: str
    gids: list[str]
    state: int = 4
    reads: int = 16
    works: bool = True
    locked_bytes_max: int = 1 << 40


@dataclass
class Fabric:
    """All devices, and who stands where."""

    devices: dict[str, FakeDevice] = field(default_factory=dict)
    pairs: dict[int, Pair] = field(default_factory=dict)
    regions: dict[int, Memory] = field(default_factory=dict)
    numbers: Any = field(default_factory=lambda: itertools.count(17))
    keys: Any = field(default_factory=lambda: itertools.count(0x1000, 7))
    per_poll: int = 64
    """Requests that a poll carries out at most, of each queue pair."""
    chance: random.Random | None = None
    """Decides which queue pairs make progress in a poll; all do without it."""
    unread: set[int] = field(default_factory=set)
    """Opcodes that stay under way until a test takes them out."""

    @property
    def library(self) -> Library:
        """The library that finds these devices."""
        fabric = self

        def bound(kind: type) -> Any:
            return lambda *args, **options: kind(fabric, *args, **options)

        return Library(
            Error=FakeError,
            get_device_list=self._list,
            Context=bound(Opened),
            PD=bound(Domain),
            MR=bound(Memory),
            CompChannel=bound(Events),
            CQ=bound(Queue),
            QP=bound(Pair),
            QPAttr=lambda port_num=1: SimpleNamespace(port_num=port_num),
            QPCap=SimpleNamespace,
            QPInitAttr=SimpleNamespace,
            AHAttr=SimpleNamespace,
            GID=str,
            GlobalRoute=SimpleNamespace,
            SGE=Element,
            SendWR=Work,
            RecvWR=Receive,
            SEND=SEND,
            WRITE=WRITE,
            READ=READ,
            SIGNALED=SIGNALED,
            FENCE=FENCE,
            LOCAL_WRITE=LOCAL_WRITE,
            REMOTE_READ=REMOTE_READ,
            REMOTE_WRITE=REMOTE_WRITE,
            RC=2,
            PORT_ACTIVE=4,
        )

    def _list(self) -> list[Any]:
        if not self.devices:
            raise FakeError("Failed to get device list")
        return [SimpleNamespace(name=name.encode()) for name in self.devices]

    def add(self, name: str, *gids: str) -> FakeDevice:
        """Plug in a device with these addresses."""
        self.devices[name] = FakeDevice(name, list(gids))
        return self.devices[name]

    def run(self) -> None:
        """Carry out what was posted."""
        for pair in tuple(self.pairs.values()):
            if self.chance is None or self.chance.random() < 0.3:
                pair.run(self.per_poll)


class Opened:
    """A context."""

    def __init__(self, fabric: Fabric, name: str) -> None:
        if name not in fabric.devices:
            raise FakeError(f"Failed to open device {name}", errno.ENODEV)
        self.device = fabric.devices[name]
        self.closed = False

    def query_device(self) -> Any:
        device = self.device
        return SimpleNamespace(
            phys_port_cnt=1,
            max_qp_wr=1 << 14,
            max_cqe=1 << 14,
            max_qp_init_rd_atom=device.reads,
            max_qp_rd_atom=device.reads,
        )

    def query_port(self, _port: int) -> Any:
        return SimpleNamespace(state=self.device.state, active_mtu=5, max_msg_sz=1 << 23, lid=0)

    def query_gid_table(self, _most: int) -> list[Any]:
        return [
            SimpleNamespace(port_num=1, gid_index=index, gid_type=1)
            for index in range(len(self.device.gids))
        ]

    def query_gid(self, _port: int, index: int) -> str:
        return self.device.gids[index]

    def close(self) -> None:
        self.closed = True


class Domain:
    """A protection domain."""

    def __init__(self, fabric: Fabric, context: Opened) -> None:
        self.device = context.device
        self.locked = 0

    def close(self) -> None:
        assert self.locked == 0, "regions are closed before their domain"


class Memory:
    """A memory region."""

    def __init__(
        self, fabric: Fabric, domain: Domain, length: int, access: int, *, address: int
    ) -> None:
        if domain.locked + length > domain.device.locked_bytes_max:
            raise FakeError("Failed to register a MR", errno.ENOMEM)
        domain.locked += length
        self.fabric, self.domain, self.access = fabric, domain, access
        self.address, self.length = address, length
        self.lkey = self.rkey = next(fabric.keys)
        fabric.regions[self.lkey] = self

    def holds(self, address: int, length: int) -> bool:
        return self.address <= address and address + length <= self.address + self.length

    def close(self) -> None:
        del self.fabric.regions[self.lkey]
        self.domain.locked -= self.length


class Events:
    """A completion channel."""

    def __init__(self, _fabric: Fabric, _context: Opened) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK)

    def get_cq_event(self, queue: Queue) -> None:
        try:
            os.eventfd_read(self.fd)
        except BlockingIOError as error:
            raise FakeError("Failed to get CQ event", errno.EAGAIN) from error
        queue.events += 1

    def close(self) -> None:
        os.close(self.fd)


class Queue:
    """A completion queue."""

    def __init__(
        self, fabric: Fabric, _context: Opened, size: int, _user: None, events: Events, _vector: int
    ) -> None:
        self.fabric, self.size, self.channel = fabric, size, events
        self.entries: deque[Any] = deque()
        self.armed = False
        self.events = 0

    def add(self, number: int, status: int, nbytes: int = 0) -> None:
        assert len(self.entries) < self.size, "a completion queue overflows, and loses entries"
        self.entries.append(SimpleNamespace(wr_id=number, status=status, byte_len=nbytes))
        if self.armed:
            self.armed = False
            os.eventfd_write(self.channel.fd, 1)

    def poll(self, most: int) -> tuple[int, list[Any]]:
        self.fabric.run()
        found = [self.entries.popleft() for _ in range(min(most, len(self.entries)))]
        return len(found), found

    def req_notify(self) -> None:
        self.armed = True

    def ack_events(self, count: int) -> None:
        self.events -= count

    def close(self) -> None:
        assert self.events == 0, "events are acknowledged before their queue is closed"


class Element:
    """A scatter-gather element."""

    def __init__(self, addr: int, length: int, lkey: int) -> None:
        self.addr, self.length, self.lkey = addr, length, lkey
        self.closed = False

    def close(self) -> None:
        assert not self.closed, "a second close is a double free"
        self.closed = True


class Work:
    """A work request of a send queue."""

    def __init__(self, *, opcode: int, num_sge: int, sg: list[Element]) -> None:
        assert num_sge == len(sg) == 1
        self.opcode, self.sg_list = opcode, sg[0]
        self.wr_id = self.send_flags = self.rkey = self.remote = 0

    def set_wr_rdma(self, rkey: int, remote: int) -> None:
        self.rkey, self.remote = rkey, remote

    def close(self) -> None:
        self.sg_list.close()


class Receive:
    """A work request of a receive queue."""

    def __init__(self, *, wr_id: int, num_sge: int, sg: list[Element]) -> None:
        assert num_sge == len(sg) == 1
        self.wr_id, self.place = wr_id, (sg[0].addr, sg[0].length)

    def close(self) -> None:
        pass


@dataclass
class Posted:
    """A request as the device has copied it."""

    number: int
    opcode: int
    flags: int
    local: int
    nbytes: int
    lkey: int
    remote: int
    rkey: int


class Pair:
    """A reliable-connected queue pair."""

    def __init__(self, fabric: Fabric, domain: Domain, wanted: Any, _attributes: Any) -> None:
        self.fabric, self.device, self.queue = fabric, domain.device, wanted.scq
        self.sizes = wanted.cap
        self.qp_num = next(fabric.numbers)
        self.sends: deque[Posted] = deque()
        self.receives: deque[tuple[int, tuple[int, int]]] = deque()
        self.peer = -1
        self.broken = False
        fabric.pairs[self.qp_num] = self

    def to_rts(self, attributes: Any) -> None:
        gid = str(attributes.ah_attr.gr.dgid)
        if not any(
            gid == _exploded(one) for dev in self.fabric.devices.values() for one in dev.gids
        ):
            raise FakeError("Failed to modify QP state to RTR", errno.EHOSTUNREACH)
        self.peer = attributes.dest_qp_num

    def post_send(self, work: Work) -> None:
        if not self.device.works:
            raise FakeError("Failed to post send", errno.EIO)
        assert len(self.sends) < self.sizes.max_send_wr, "more than the send queue holds"
        element = work.sg_list
        self.sends.append(
            Posted(
                work.wr_id,
                work.opcode,
                work.send_flags,
                element.addr,
                element.length,
                element.lkey,
                work.remote,
                work.rkey,
            )
        )

    def post_recv(self, receive: Receive) -> None:
        assert len(self.receives) < self.sizes.max_recv_wr
        self.receives.append((receive.wr_id, receive.place))

    def run(self, most: int) -> None:
        for _ in range(most):
            if not self.sends or self.sends[0].opcode in self.fabric.unread:
                return
            posted = self.sends[0]
            status = FLUSHED if self.broken else self._carry_out(posted)
            if status is None:
                return  # the peer has no receive posted: tried again
            self.sends.popleft()
            self.broken = self.broken or status != SUCCESS
            if posted.flags & SIGNALED or status:
                self.queue.add(posted.number, status)

    def _carry_out(self, posted: Posted) -> int | None:
        peer = self.fabric.pairs.get(self.peer)
        if peer is None or not (self.device.works and peer.device.works):
            return NO_ANSWER
        source = self.fabric.regions.get(posted.lkey)
        if source is None or not source.holds(posted.local, posted.nbytes):
            return BAD_LOCAL_KEY
        if posted.opcode == SEND:
            return self._deliver(peer, posted)
        access = REMOTE_READ if posted.opcode == READ else REMOTE_WRITE
        region = self.fabric.regions.get(posted.rkey)
        if region is None or not region.holds(posted.remote, posted.nbytes):
            return REFUSED
        if not region.access & access or region.domain.device is not peer.device:
            return REFUSED
        if posted.opcode == READ:
            ctypes.memmove(posted.local, posted.remote, posted.nbytes)
        else:
            ctypes.memmove(posted.remote, posted.local, posted.nbytes)
        return SUCCESS

    @staticmethod
    def _deliver(peer: Pair, posted: Posted) -> int | None:
        if not peer.receives:
            return None
        number, (address, room) = peer.receives.popleft()
        if posted.nbytes > room:
            return REFUSED
        ctypes.memmove(address, posted.local, posted.nbytes)
        peer.queue.add(number, SUCCESS, posted.nbytes)
        return SUCCESS

    def close(self) -> None:
        del self.fabric.pairs[self.qp_num]


def _exploded(gid: str) -> str:
    import ipaddress

    return ipaddress.IPv6Address(gid).exploded


def two_hosts() -> Fabric:
    """Return a fabric of two devices, as soft-RoCE's on both ends of a cable."""
    fabric = Fabric()
    fabric.add("rxe0", "fe80::1", "::ffff:192.0.2.1")
    fabric.add("rxe1", "fe80::2", "::ffff:192.0.2.2")
    return fabric
