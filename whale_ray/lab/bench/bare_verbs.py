"""Bare loops over pyverbs: what the library and the device can do, without whale-ray.

Devices are opened and queue pairs connected as links do it. The loop is as one would write it by
hand: requests are created once, each is signalled, and as many are under way as fit the memory.
"""

from __future__ import annotations

import os
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, Final

from ...transport.segment import Bytes
from ...transport.verbs import library as pyverbs
from ...transport.verbs.device import Buffer, Device
from ...transport.verbs.link_resources import Data
from ...transport.verbs.queue_pair import QueuePair, QueuePairAddress, WorkRequest
from .backends import MessageLoad, MessageSender, ReceiveAll
from .processes import ClosedAtExit

UNDER_WAY_MAX: Final = 64
_RECEIVES: Final = 64
_HALF: Final = _RECEIVES // 2
_POLL_MAX: Final = 16


class BarePair(QueuePair):
    """A queue pair that is used through the library's own objects."""

    def __init__(self, device: Device) -> None:
        """Make one of the device's best address."""
        super().__init__(device, device.best_gid, UNDER_WAY_MAX + 1, _RECEIVES)
        self._slots: list[tuple[int, int]] = []

    def start(self, works: list[Any], under_way_max: int) -> BareRequests:
        """Return a sender that posts `works` in turn."""
        return BareRequests(self._pair.post_send, self._queue.poll, works, under_way_max)

    def post_again(self, slot: int) -> None:
        """Post a receive buffer again."""
        self._pair.post_recv(self._receives[slot])

    def post_bare(self, work: Any) -> None:
        """Post a request."""
        self._pair.post_send(work)

    def next_arrival(self) -> int:
        """Return the buffer of the next message; completions of sends are passed over."""
        while not self._slots:
            if not self.poll(self._slots):
                os.sched_yield()  # the kernel's threads need the processors that pollers occupy
        return self._slots.pop(0)[0]


class BareRequests:
    """Posts the same requests in turn, with a fixed number under way."""

    def __init__(self, post: Any, poll: Any, works: list[Any], under_way_max: int) -> None:
        """Begin without a request under way."""
        self._post = post
        self._poll = poll
        self._works = works
        self._under_way_max = under_way_max
        self._under_way = 0
        self.posted = 0

    def run(self, count: int) -> None:
        """Post `count` requests; returns when the last is posted."""
        post, works = self._post, self._works
        for number in range(self.posted, self.posted + count):
            if self._under_way >= self._under_way_max:
                self._wait()
            post(works[number % len(works)])
            self._under_way += 1
        self.posted += count

    def finish(self) -> None:
        """Wait until all are completed."""
        while self._under_way:
            self._wait()

    def _wait(self) -> None:
        while not (found := self._poll(_POLL_MAX))[0]:
            os.sched_yield()
        for completion in found[1]:
            if completion.status:
                msg = f"a request failed: {pyverbs.status_in_words(completion.status)}"
                raise RuntimeError(msg)
        self._under_way -= found[0]


class BareSide:
    """A device, memory and a queue pair of one process, connected to those of the other."""

    def __init__(self, name: str, memory_bytes: int, content: Bytes | None, pipe: Connection):
        """Create them; the memory is filled with copies of `content`."""
        library = pyverbs.load()
        self.device: Final = Device(library, name)
        access = library.LOCAL_WRITE | library.REMOTE_READ | library.REMOTE_WRITE
        self.memory: Final = Buffer(self.device, memory_bytes, access, "memory")
        if content is not None:
            for start in range(0, memory_bytes - content.size + 1, content.size):
                self.memory.view[start : start + content.size] = content.data
        self.pair: Final = BarePair(self.device)
        self._pipe = pipe

    def connect(self) -> tuple[int, int]:
        """Connect to the peer; return address and key of its memory."""
        region = self.memory.region
        self._pipe.send((self.pair.own_address.encode(), region.address, region.rkey))
        card, address, rkey = self._pipe.recv()
        self.pair.connect(QueuePairAddress.decode(card))
        self._pipe.send("connected")  # no side sends before both are
        self._pipe.recv()
        return address, rkey

    def works(self, opcode: int, nbytes: int, places: int, remote: tuple[int, int]) -> list[Any]:
        """Return a request for each place of the memory; `remote` is (0, 0) for SEND."""
        address, rkey = remote
        works = []
        for place in range(places):
            request = WorkRequest(self.device, opcode, self.memory.region.lkey)
            request.element.addr = self.memory.address + place * nbytes
            request.element.length = nbytes
            request.work.send_flags = self.device.library.SIGNALED
            if rkey:
                request.work.set_wr_rdma(rkey, address + place * nbytes)
            works.append(request.work)
        return works


class BareBackend(ClosedAtExit):
    """Bare READ, WRITE or SEND (`data`). The backend's sender posts the requests, also for READ."""

    def __init__(self, data: Data, devices: tuple[str, str], load: MessageLoad) -> None:
        """Transfer from the first device to the second."""
        self._data = data
        self._load = load
        # A READ is posted on the second device, which receives the bytes.
        self._devices = devices[::-1] if data is Data.READ else devices
        self._ours, self._theirs = Pipe()

    def close(self) -> None:
        """See `ClosedAtExit.close`."""
        self._ours.close()
        self._theirs.close()

    def sender(self) -> MessageSender:
        """See `Backend.sender`."""
        load = self._load
        side = BareSide(self._devices[0], load.memory_bytes, load.content(), self._ours)
        remote = side.connect()
        library = side.device.library
        places = min(load.memory_bytes // load.nbytes, UNDER_WAY_MAX)
        if self._data is Data.SEND:
            works = side.works(library.SEND, load.nbytes, places, (0, 0))
            return BareSendSender(side, works, self._ours)
        opcode = library.READ if self._data is Data.READ else library.WRITE
        works = side.works(opcode, load.nbytes, places, remote)
        return BareSender(side, works, self._ours)

    def receiver(self, reader: int) -> ReceiveAll:
        """See `Backend.receiver`."""
        assert reader == 0, "a queue pair has one peer"
        load = self._load
        name = self._devices[1]
        if self._data is not Data.SEND:
            side = BareSide(name, load.memory_bytes, load.content(), self._theirs)
            side.connect()
            return partial(_wait_for_end, side, self._theirs)
        side = BareSide(name, _RECEIVES * load.nbytes, None, self._theirs)
        side.pair.prepare_receives(side.memory.region, load.nbytes)
        side.connect()
        return partial(_receive_until_end, side, self._theirs)


class BareSender:
    """Posts READs or WRITEs."""

    def __init__(self, side: BareSide, works: list[Any], pipe: Connection) -> None:
        """Post `works` in turn, all of them under way at once."""
        self._side = side  # keeps the memory alive
        self._pipe = pipe
        self._requests = side.pair.start(works, len(works))

    def send(self, count: int) -> None:
        """See `MessageSender.send`."""
        self._requests.run(count)

    def finish(self) -> None:
        """See `MessageSender.finish`."""
        self._requests.finish()
        self._pipe.send(self._requests.posted)


class BareSendSender(BareSender):
    """Posts SENDs, at most one per receive buffer; the peer reports every 32 over the pipe."""

    def send(self, count: int) -> None:
        """See `MessageSender.send`."""
        requests = self._requests
        for _ in range(count):
            if requests.posted % _HALF == 0 and requests.posted >= _RECEIVES:
                self._pipe.recv()
            requests.run(1)


def _wait_for_end(side: BareSide, pipe: Connection) -> int:
    del side  # keeps the memory alive until then
    return int(pipe.recv())


def _receive_until_end(side: BareSide, pipe: Connection) -> int:
    """Receive until the sender has reported the number of messages."""
    pair, received, sent = side.pair, 0, -1
    arrived: list[tuple[int, int]] = []
    while received != sent:
        if not pair.poll(arrived):
            os.sched_yield()
            if pipe.poll():
                sent = int(pipe.recv())
        for slot, _ in arrived:
            pair.post_again(slot)
            received += 1
            if received % _HALF == 0:
                pipe.send("go on")
        arrived.clear()
    return received
