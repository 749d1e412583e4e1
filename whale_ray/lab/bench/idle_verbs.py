"""A verbs library without a device: it carries out posted requests at once, in this process.

It checks nothing, and counts the time of its calls. Without that time, what is left is the Python
side of a link.
"""

from __future__ import annotations

import ctypes
import os
from collections import deque
from time import perf_counter_ns
from types import SimpleNamespace
from typing import Any, Final

from ...transport.verbs.library import Library

SEND, WRITE, READ = 2, 0, 4
_SIGNALED: Final = 2
_clock_ns = perf_counter_ns


class IdleError(Exception):
    """Never raised."""


class Completion:
    """The result of a poll."""

    __slots__ = ("byte_len", "status", "wr_id")

    def __init__(self, number: int, nbytes: int = 0) -> None:
        self.wr_id = number
        self.status = 0
        self.byte_len = nbytes


class IdleFabric:
    """Two connected queue pairs, and the time spent in library calls."""

    def __init__(self) -> None:
        """Begin without queue pairs."""
        self.pairs: list[IdlePair] = []
        self.spent_ns = 0

    @property
    def library(self) -> Library:
        """The library of the one device `idle`."""
        return Library(
            Error=IdleError,
            get_device_list=lambda: [SimpleNamespace(name=b"idle")],
            Context=lambda **_: _Context(),
            PD=lambda _context: _Closed(),
            MR=lambda _domain, _length, _access, address: _Region(address),
            CompChannel=lambda _context: _Events(),
            CQ=lambda *_: _Queue(self),
            QP=lambda _domain, wanted, _attributes: IdlePair(self, wanted.scq),
            QPAttr=lambda port_num=1: SimpleNamespace(port_num=port_num),
            QPCap=SimpleNamespace,
            QPInitAttr=SimpleNamespace,
            AHAttr=SimpleNamespace,
            GID=str,
            GlobalRoute=SimpleNamespace,
            SGE=_Element,
            SendWR=_Work,
            RecvWR=_Receive,
            SEND=SEND,
            WRITE=WRITE,
            READ=READ,
            SIGNALED=_SIGNALED,
            LOCAL_WRITE=1,
            REMOTE_WRITE=2,
            REMOTE_READ=4,
            RC=2,
            PORT_ACTIVE=4,
        )


class _Closed:
    def close(self) -> None:
        pass


class _Context(_Closed):
    def query_device(self) -> Any:
        most = 1 << 14
        return SimpleNamespace(
            phys_port_cnt=1,
            max_qp_wr=most,
            max_cqe=most,
            max_qp_init_rd_atom=16,
            max_qp_rd_atom=16,
        )

    def query_port(self, _port: int) -> Any:
        return SimpleNamespace(state=4, active_mtu=5, max_msg_sz=1 << 30, lid=0)

    def query_gid_table(self, _most: int) -> list[Any]:
        return [SimpleNamespace(port_num=1, gid_index=0, gid_type=1)]

    def query_gid(self, _port: int, _index: int) -> str:
        return "::ffff:192.0.2.1"


class _Region(_Closed):
    def __init__(self, address: int) -> None:
        self.lkey = self.rkey = address >> 12 & 0xFFFF | 1


class _Events:
    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK)

    def close(self) -> None:
        os.close(self.fd)


class _Queue(_Closed):
    def __init__(self, fabric: IdleFabric) -> None:
        self._fabric = fabric
        self.entries: deque[Completion] = deque(maxlen=1 << 15)

    def poll(self, most: int) -> tuple[int, list[Completion]]:
        start_ns = _clock_ns()
        entries = self.entries
        found = [entries.popleft() for _ in range(min(most, len(entries)))]
        self._fabric.spent_ns += _clock_ns() - start_ns
        return len(found), found

    def req_notify(self) -> None:
        pass


class _Element(_Closed):
    def __init__(self, addr: int, length: int, lkey: int) -> None:
        self.addr, self.length, self.lkey = addr, length, lkey


class _Work(_Closed):
    def __init__(self, *, opcode: int, num_sge: int, sg: list[_Element]) -> None:
        del num_sge
        self.opcode = opcode
        self.sg_list = sg[0]
        self.wr_id = self.send_flags = self.remote = 0

    def set_wr_rdma(self, rkey: int, remote: int) -> None:
        del rkey
        self.remote = remote


class _Receive(_Closed):
    def __init__(self, *, wr_id: int, num_sge: int, sg: list[_Element]) -> None:
        del num_sge
        self.number, self.address = wr_id, sg[0].addr


class IdlePair(_Closed):
    """A queue pair."""

    def __init__(self, fabric: IdleFabric, queue: _Queue) -> None:
        self._fabric = fabric
        self.queue = queue
        self.receives: deque[_Receive] = deque(maxlen=1 << 14)
        self.qp_num = self._peer = len(fabric.pairs)
        fabric.pairs.append(self)

    def to_rts(self, attributes: Any) -> None:
        """Connect to the peer."""
        self._peer = attributes.dest_qp_num

    def post_recv(self, receive: _Receive) -> None:
        """Take a receive buffer."""
        self.receives.append(receive)

    def post_send(self, work: _Work) -> None:
        """Carry the request out at once."""
        start_ns = _clock_ns()
        fabric, element = self._fabric, work.sg_list
        if work.opcode == SEND:
            peer = fabric.pairs[self._peer]
            receive = peer.receives.popleft()
            ctypes.memmove(receive.address, element.addr, element.length)
            peer.queue.entries.append(Completion(receive.number, element.length))
        elif work.opcode == READ:
            ctypes.memmove(element.addr, work.remote, element.length)
        else:
            ctypes.memmove(work.remote, element.addr, element.length)
        if work.send_flags & _SIGNALED:
            self.queue.entries.append(Completion(work.wr_id))
        fabric.spent_ns += _clock_ns() - start_ns
