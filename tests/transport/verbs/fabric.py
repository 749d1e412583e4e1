"""A fake verbs library: devices, keys and queue pairs within this process.

It keeps the rules that real devices keep, and is strict where they are silent: a completion queue
that overflows, a request that was never counted, memory named by a key that is gone, what is closed
before that which needs it. Requests are carried out when somebody polls, in the order in which they
were posted to their queue pair.
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
SIGNALED = 2
LOCAL_WRITE, REMOTE_WRITE, REMOTE_READ = 1, 2, 4
SUCCESS, BAD_LOCAL_KEY, FLUSHED, REFUSED, NO_ANSWER = 0, 4, 5, 10, 12
GONE = "Input/output error: the device is gone"


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
    requests: int = 1 << 14
    completions: int = 1 << 14
    message_bytes: int = 1 << 23
    pairs_max: int = 1 << 14
    works: bool = True
    locked_bytes_max: int = 1 << 40
    gone: bool = False
    """Whether it was pulled out: everything made with it answers with errors, or not at all."""

    def must_be_there(self) -> None:
        if self.gone:
            raise FakeError(GONE, errno.EIO)


@dataclass
class Fabric:
    """All devices, and who stands where."""

    devices: dict[str, FakeDevice] = field(default_factory=dict)
    pairs: dict[int, Pair] = field(default_factory=dict)
    regions: dict[int, RemoteMemory] = field(default_factory=dict)
    numbers: Any = field(default_factory=lambda: itertools.count(17))
    keys: Any = field(default_factory=lambda: itertools.count(0x1000, 7))
    per_poll: int = 64
    """Requests that a poll carries out at most, of each queue pair."""
    chance: random.Random | None = None
    """Decides which queue pairs make progress in a poll; all do without it."""
    unread: set[int] = field(default_factory=set)
    """Opcodes that stay under way until a test takes them out."""
    statuses: dict[int, int] = field(default_factory=dict)
    """With which status the next request of an opcode is to complete, though nothing of it is
    done."""
    torn: set[int] = field(default_factory=set)
    """Opcodes whose next request moves half of its bytes, and then the peer answers no more."""
    spoiled: dict[int, dict[str, int]] = field(default_factory=dict)
    """What is to be added to the `rkey` or `remote` of the next request of an opcode."""
    open: dict[int, Handle] = field(default_factory=dict)
    """Everything that was made, and not closed, by identity."""

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
            MR=bound(RemoteMemory),
            CompChannel=bound(Events),
            CQ=bound(Queue),
            QP=bound(Pair),
            QPAttr=lambda port_num=1: SimpleNamespace(port_num=port_num),
            QPCap=SimpleNamespace,
            QPInitAttr=SimpleNamespace,
            AHAttr=SimpleNamespace,
            GID=str,
            GlobalRoute=SimpleNamespace,
            SGE=bound(Element),
            SendWR=bound(Work),
            RecvWR=bound(Receive),
            SEND=SEND,
            WRITE=WRITE,
            READ=READ,
            SIGNALED=SIGNALED,
            LOCAL_WRITE=LOCAL_WRITE,
            REMOTE_READ=REMOTE_READ,
            REMOTE_WRITE=REMOTE_WRITE,
            RC=2,
            PORT_ACTIVE=4,
        )

    def _list(self) -> list[Any]:
        names = [name for name, device in self.devices.items() if not device.gone]
        if not names:
            raise FakeError("Failed to get device list")
        return [SimpleNamespace(name=name.encode()) for name in names]

    def add(self, name: str, *gids: str) -> FakeDevice:
        """Plug in a device with these addresses."""
        self.devices[name] = FakeDevice(name, list(gids))
        return self.devices[name]

    def pull(self, name: str) -> None:
        """Pull a device out; `add` plugs another one in."""
        self.devices[name].gone = True
        for pair in [pair for pair in self.pairs.values() if pair.device.gone]:
            del self.pairs[pair.qp_num]
        for region in [one for one in self.regions.values() if one.device.gone]:
            del self.regions[region.lkey]

    def run(self) -> None:
        """Carry out what was posted."""
        for pair in tuple(self.pairs.values()):
            if self.chance is None or self.chance.random() < 0.3:
                pair.run(self.per_poll)


class Handle:
    """What is made with a device, and must be closed once, before what it needs."""

    def __init__(self, fabric: Fabric, device: FakeDevice | None, *needs: Handle) -> None:
        if device is not None:
            device.must_be_there()
        self.device, self.needs, self.users = device, needs, 0
        self.open = fabric.open
        self.open[id(self)] = self
        for one in needs:
            one.users += 1

    def close(self) -> None:
        kind = type(self).__name__
        assert id(self) in self.open, f"a second close of {kind} is a double free"
        assert not self.users, f"{kind} is closed before what needs it"
        del self.open[id(self)]
        for one in self.needs:
            one.users -= 1
        self.end()
        if self.device is not None:
            self.device.must_be_there()

    def end(self) -> None:
        """Do what closing does besides."""


class Opened(Handle):
    """A context."""

    def __init__(self, fabric: Fabric, name: str) -> None:
        if name not in fabric.devices or fabric.devices[name].gone:
            raise FakeError(f"Failed to open device {name}", errno.ENODEV)
        super().__init__(fabric, fabric.devices[name])

    def query_device(self) -> Any:
        device = self.device
        return SimpleNamespace(
            phys_port_cnt=1,
            max_qp_wr=device.requests,
            max_cqe=device.completions,
            max_qp_init_rd_atom=device.reads,
            max_qp_rd_atom=device.reads,
        )

    def query_port(self, _port: int) -> Any:
        device = self.device
        return SimpleNamespace(
            state=device.state, active_mtu=5, max_msg_sz=device.message_bytes, lid=0
        )

    def query_gid_table(self, _most: int) -> list[Any]:
        return [
            SimpleNamespace(port_num=1, gid_index=index, gid_type=1)
            for index in range(len(self.device.gids))
        ]

    def query_gid(self, _port: int, index: int) -> str:
        return self.device.gids[index]


class Domain(Handle):
    """A protection domain."""

    def __init__(self, fabric: Fabric, context: Opened) -> None:
        super().__init__(fabric, context.device, context)
        self.locked = 0


class RemoteMemory(Handle):
    """A memory region."""

    def __init__(
        self, fabric: Fabric, domain: Domain, length: int, access: int, *, address: int
    ) -> None:
        if domain.locked + length > domain.device.locked_bytes_max:
            raise FakeError("Failed to register a MR", errno.ENOMEM)
        super().__init__(fabric, domain.device, domain)
        domain.locked += length
        self.fabric, self.domain, self.access = fabric, domain, access
        self.address, self.length = address, length
        self.lkey = self.rkey = next(fabric.keys)
        fabric.regions[self.lkey] = self

    def holds(self, address: int, length: int) -> bool:
        return self.address <= address and address + length <= self.address + self.length

    def end(self) -> None:
        self.fabric.regions.pop(self.lkey, None)
        self.domain.locked -= self.length


class Events(Handle):
    """A completion channel."""

    def __init__(self, fabric: Fabric, context: Opened) -> None:
        super().__init__(fabric, context.device, context)
        self.fd = os.eventfd(0, os.EFD_NONBLOCK)

    def get_cq_event(self, queue: Queue) -> None:
        try:
            os.eventfd_read(self.fd)
        except BlockingIOError as error:
            raise FakeError("Failed to get CQ event", errno.EAGAIN) from error
        queue.events += 1

    def end(self) -> None:
        os.close(self.fd)


class Queue(Handle):
    """A completion queue."""

    def __init__(
        self, fabric: Fabric, context: Opened, size: int, _user: None, events: Events, _vector: int
    ) -> None:
        super().__init__(fabric, context.device, context, events)
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
        self.device.must_be_there()
        self.armed = True

    def ack_events(self, count: int) -> None:
        self.events -= count

    def end(self) -> None:
        assert self.events == 0, "events are acknowledged before their queue is closed"


class Element(Handle):
    """A scatter-gather element."""

    def __init__(self, fabric: Fabric, addr: int, length: int, lkey: int) -> None:
        super().__init__(fabric, None)
        self.addr, self.length, self.lkey = addr, length, lkey


class Work(Handle):
    """A work request of a send queue."""

    def __init__(self, fabric: Fabric, *, opcode: int, num_sge: int, sg: list[Element]) -> None:
        super().__init__(fabric, None)
        assert num_sge == len(sg) == 1
        self.opcode, self.sg_list = opcode, sg[0]
        self.wr_id = self.send_flags = self.rkey = self.remote = 0

    def set_wr_rdma(self, rkey: int, remote: int) -> None:
        self.rkey, self.remote = rkey, remote

    def end(self) -> None:
        self.sg_list.close()


class Receive(Handle):
    """A work request of a receive queue."""

    def __init__(self, fabric: Fabric, *, wr_id: int, num_sge: int, sg: list[Element]) -> None:
        super().__init__(fabric, None)
        assert num_sge == len(sg) == 1
        self.wr_id, self.place = wr_id, (sg[0].addr, sg[0].length)


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


class Pair(Handle):
    """A reliable-connected queue pair."""

    def __init__(self, fabric: Fabric, domain: Domain, wanted: Any, _attributes: Any) -> None:
        if sum(pair.device is domain.device for pair in fabric.pairs.values()) >= (
            domain.device.pairs_max
        ):
            raise FakeError("Failed to create QP", errno.ENOMEM)
        super().__init__(fabric, domain.device, domain, wanted.scq)
        self.fabric, self.queue = fabric, wanted.scq
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
        if not self.device.works or self.device.gone:
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
        self.device.must_be_there()
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
            if posted.flags & SIGNALED or status:
                self.queue.add(posted.number, status)
            if status and not self.broken:
                self.fail()

    def fail(self) -> None:
        """Be in the state of errors, in which nothing is received any more, either."""
        self.broken = True
        while self.receives:
            self.queue.add(self.receives.popleft()[0], FLUSHED)

    def _carry_out(self, posted: Posted) -> int | None:
        fabric, opcode = self.fabric, posted.opcode
        peer = fabric.pairs.get(self.peer)
        if peer is None or peer.broken or not (self.device.works and peer.device.works):
            return NO_ANSWER
        if opcode in fabric.statuses:
            return fabric.statuses.pop(opcode)
        source = self.fabric.regions.get(posted.lkey)
        if source is None or not source.holds(posted.local, posted.nbytes):
            return BAD_LOCAL_KEY
        if posted.opcode == SEND:
            return self._deliver(peer, posted)
        for what, difference in fabric.spoiled.pop(opcode, {}).items():
            setattr(posted, what, getattr(posted, what) + difference)
        access = REMOTE_READ if posted.opcode == READ else REMOTE_WRITE
        region = self.fabric.regions.get(posted.rkey)
        if region is None or not region.holds(posted.remote, posted.nbytes):
            return peer.refuse()
        if not region.access & access or region.domain.device is not peer.device:
            return peer.refuse()
        torn = opcode in fabric.torn
        fabric.torn.discard(opcode)
        nbytes = posted.nbytes // 2 if torn else posted.nbytes
        if opcode == READ:
            ctypes.memmove(posted.local, posted.remote, nbytes)
        else:
            ctypes.memmove(posted.remote, posted.local, nbytes)
        return NO_ANSWER if torn else SUCCESS

    def refuse(self) -> int:
        """Refuse the peer's request, which breaks both sides."""
        self.fail()
        return REFUSED

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

    def end(self) -> None:
        self.fabric.pairs.pop(self.qp_num, None)


def _exploded(gid: str) -> str:
    import ipaddress

    return ipaddress.IPv6Address(gid).exploded


def two_hosts() -> Fabric:
    """Return a fabric of two devices, as soft-RoCE's on both ends of a cable."""
    fabric = Fabric()
    fabric.add("rxe0", "fe80::1", "::ffff:192.0.2.1")
    fabric.add("rxe1", "fe80::2", "::ffff:192.0.2.2")
    return fabric
