"""Queue pairs, regions and devices by themselves: SEND, READ, WRITE, and what can go wrong."""

from __future__ import annotations

import contextlib
import mmap
import os
import resource
import select
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.transport.verbs.conftest import DEVICES, SOFT_ROCE, Machine
from whale_ray.configs.errors import ResourceError
from whale_ray.transport.clock import SystemClock
from whale_ray.transport.links.link import LinkBrokenError
from whale_ray.transport.verbs.device import Buffer, Device, Region, device_names
from whale_ray.transport.verbs.library import NoVerbsError
from whale_ray.transport.verbs.queue_pair import QueuePair, QueuePairAddress, WorkRequest

BYTES = 1 << 16
RECEIVE_BYTES = 1 << 12
RECEIVES = 8
PATIENCE_NS = 60_000_000_000


@dataclass
class Side:
    """A device, its queue pair and memory: receives in front, the rest for data."""

    device: Device
    pair: QueuePair
    buffer: Buffer

    def __post_init__(self) -> None:
        library, lkey = self.device.library, self.buffer.region.lkey
        self.requests = {
            opcode: WorkRequest(self.device, opcode, lkey)
            for opcode in (library.SEND, library.WRITE, library.READ)
        }
        self.data = RECEIVES * RECEIVE_BYTES
        """Where the memory for data begins."""
        self.arrived: list[tuple[int, int]] = []

    def fill(self, content: bytes, at: int = 0) -> int:
        """Write `content` into the memory for data; return its address."""
        start = self.data + at
        self.buffer.view[start : start + len(content)] = content
        return self.buffer.address + start

    def holds(self, nbytes: int, at: int = 0) -> bytes:
        return bytes(self.buffer.view[self.data + at : self.data + at + nbytes])

    def post(
        self, opcode: int, nbytes: int, far: Side | None = None, at: int = 0, **other: int
    ) -> None:
        """Post a request for data at `at`, on the far side at the same place; signalled."""
        remote = 0 if far is None else other.get("remote", far.buffer.address + far.data + at)
        rkey = 0 if far is None else other.get("rkey", far.buffer.region.rkey)
        flags = other.get("flags", self.device.library.SIGNALED)
        local = self.buffer.address + self.data + at
        self.pair.post(self.requests[opcode], local, nbytes, remote, rkey, flags)

    def settle(self) -> None:
        """Wait until all that was posted is done; the last one must be signalled."""
        wait_for(lambda: self.pair.completed == self.pair.posted, self)

    def close(self) -> None:
        self.pair.close()
        for request in self.requests.values():
            request.close()
        self.buffer.close()
        self.device.close()


def wait_for(done, *sides: Side) -> None:
    clock = SystemClock()
    deadline_ns = clock.monotonic_ns() + PATIENCE_NS
    while not done():
        for side in sides:
            side.pair.poll(side.arrived)
        assert clock.monotonic_ns() < deadline_ns, "it does not come to an end"


def side_of(machine: Machine, name: str, extra_completions: int = 0) -> Side:
    library = machine.library
    device = Device(library, name)
    access = library.LOCAL_WRITE | library.REMOTE_READ | library.REMOTE_WRITE
    buffer = Buffer(device, BYTES, access, "a test's memory")
    pair = QueuePair(device, device.best_gid, 32, RECEIVES, extra_completions=extra_completions)
    pair.prepare_receives(buffer.region, RECEIVE_BYTES)
    return Side(device, pair, buffer)


def connect(near: Side, far: Side) -> tuple[Side, Side]:
    near.pair.connect(QueuePairAddress.decode(far.pair.own_address.encode()))
    far.pair.connect(QueuePairAddress.decode(near.pair.own_address.encode()))
    return near, far


@pytest.fixture
def sides(machine: Machine) -> Iterator[tuple[Side, Side]]:
    """Yield two connected queue pairs, on two devices."""
    near, far = connect(*(side_of(machine, name) for name in DEVICES))
    yield near, far
    for side in (near, far):
        with contextlib.suppress(Exception):
            side.close()


def test_send_fills_the_receives_in_order(sides):
    near, far = sides
    for number in range(3 * RECEIVES):
        near.fill(b"frame %d" % number)
        near.post(near.device.library.SEND, 100)
        near.settle()
        wait_for(lambda: far.arrived, far)
        ((slot, nbytes),) = far.arrived
        assert (slot, nbytes) == (number % RECEIVES, 100)
        start = slot * RECEIVE_BYTES
        assert bytes(far.buffer.view[start : start + 10]).startswith(b"frame %d" % number)
        far.pair.post_receive(slot)
        far.arrived.clear()


def test_write_and_read_move_bytes_between_the_memories(sides):
    near, far = sides
    library = near.device.library
    near.fill(bytes(range(200)))
    near.post(library.WRITE, 200, far)
    near.settle()
    assert far.holds(200) == bytes(range(200))
    far.fill(b"x" * 5000, at=8192)
    near.post(library.READ, 5000, far, at=8192)
    near.settle()
    assert near.holds(5000, at=8192) == b"x" * 5000


def test_a_completion_says_that_all_before_it_is_done(sides):
    near, far = sides
    library = near.device.library
    for number in range(20):
        near.fill(bytes([number]) * 64, at=64 * number)
        near.post(library.WRITE, 64, far, at=64 * number, flags=0)
    assert near.pair.room == near.pair.sends_max - 20
    assert near.pair.completed == 0
    near.post(library.READ, 64, far, at=64 * 19)
    near.settle()
    assert near.pair.room == near.pair.sends_max
    assert far.holds(64 * 20) == b"".join(bytes([number]) * 64 for number in range(20))


def test_what_is_written_is_there_before_the_frame_that_follows(sides):
    near, far = sides
    library = near.device.library
    for number in range(1, 50):
        near.fill(bytes([number]) * 9000)
        near.post(library.WRITE, 9000, far, flags=0)
        near.post(library.SEND, 8)
        wait_for(lambda: far.arrived, near, far)
        assert far.holds(9000) == bytes([number]) * 9000
        far.pair.post_receive(far.arrived.pop()[0])
        near.settle()


def test_a_second_queue_pair_is_polled_for_by_the_first(machine: Machine):
    """Each counts its own requests, and the second one has no descriptor to wait for."""
    near, far = (side_of(machine, name, extra_completions=8) for name in DEVICES)
    seconds = [
        QueuePair(side.device, side.device.best_gid, 8, 1, shares_queue_of=side.pair)
        for side in (near, far)
    ]
    connect(near, far)
    for ours, theirs in (seconds, seconds[::-1]):
        ours.connect(QueuePairAddress.decode(theirs.own_address.encode()))
    assert seconds[0].fd == -1
    library = near.device.library
    far.fill(b"x" * 5000)
    for number in range(3):
        local, remote = near.buffer.address + near.data, far.buffer.address + far.data
        rkey = far.buffer.region.rkey
        seconds[0].post(near.requests[library.READ], local, 5000, remote, rkey, library.SIGNALED)
        near.fill(b"frame", at=8192)
        near.post(library.SEND, 100, at=8192)
        wait_for(lambda wanted=number + 1: len(far.arrived) == wanted, near, far)
    wait_for(lambda: seconds[0].completed == seconds[0].posted, near)
    near.settle()
    assert near.pair.completed == seconds[0].completed - seconds[1].completed == 3
    assert near.holds(5000) == b"x" * 5000
    for second, side in zip(seconds, (near, far), strict=True):
        second.close()
        side.close()


@pytest.mark.parametrize("opcode", ["READ", "WRITE"])
def test_a_wrong_key_breaks_the_queue_pair(sides, opcode):
    near, far = sides
    near.fill(b"nothing of this arrives")
    near.post(getattr(near.device.library, opcode), 23, far, rkey=far.buffer.region.rkey + 1)
    with pytest.raises(LinkBrokenError) as caught:
        near.settle()
    assert str(caught.value) == "RDMA device 'rxe0': request 0 failed: access refused by the peer"
    assert caught.value.reason == "verbs: access refused by the peer"
    assert far.holds(23) == bytes(23)


@pytest.mark.parametrize("opcode", ["READ", "WRITE"])
def test_memory_beyond_the_region_is_refused(sides, opcode):
    near, far = sides
    beyond = far.buffer.address + BYTES - 8
    near.post(getattr(near.device.library, opcode), 64, far, remote=beyond)
    with pytest.raises(LinkBrokenError, match="access refused by the peer"):
        near.settle()


def test_a_key_is_useless_once_its_region_is_closed(sides):
    near, far = sides
    far.buffer.region.close()
    near.post(near.device.library.READ, 64, far)
    with pytest.raises(LinkBrokenError, match="access refused by the peer"):
        near.settle()


def test_a_peer_that_vanishes_is_noticed(sides):
    """In the middle of READs: no request hangs for ever."""
    near, far = sides
    near.post(near.device.library.READ, 4096, far)
    near.settle()
    far.close()
    for _ in range(4):
        near.post(near.device.library.READ, 4096, far)
    with pytest.raises(LinkBrokenError) as caught:
        near.settle()
    assert caught.value.reason == "verbs: the peer does not answer"


def test_the_descriptor_tells_of_completions(sides):
    near, far = sides
    poller = select.poll()
    poller.register(far.pair.fd, select.POLLIN)
    far.pair.take_event()
    far.pair.arm()
    assert not poller.poll(0)
    for number in range(3):
        near.post(near.device.library.SEND, 8)
        near.settle()
        assert poller.poll(60_000), "told once"
        far.pair.take_event()
        assert not poller.poll(0), "and no more, until it is asked to"
        wait_for(lambda: far.arrived, far)
        far.pair.post_receive(far.arrived.pop()[0])
        far.pair.arm()
        assert not poller.poll(0), number


def test_a_card_survives_the_wire(sides):
    card = sides[0].pair.own_address
    assert QueuePairAddress.decode(card.encode()) == card
    assert len(card.encode()) == 32


def test_a_device_knows_its_addresses(machine):
    for name, ip in zip(DEVICES, ("192.0.2.1", "192.0.2.2"), strict=True):
        device = Device(machine.library, name)
        found = device.gid_for(ip)
        assert found == device.best_gid
        assert device.gid_for("192.0.2.77") is None
        assert min(device.limits.reads, device.limits.reads_served) >= 1
        device.close()
        device.close()
    assert device_names(machine.library) == DEVICES


def test_a_device_that_is_not_there(machine):
    with pytest.raises(NoVerbsError) as caught:
        Device(machine.library, "mlx5_7")
    assert str(caught.value).startswith("RDMA device 'mlx5_7' cannot be opened (")
    assert str(caught.value).endswith("; name another, or set transport.between_hosts to tcp")


@pytest.mark.parametrize("kind", [SOFT_ROCE], scope="session")
def test_memory_that_is_not_mapped_is_refused(machine):
    """Not with the pretended devices, which take any address."""
    device = Device(machine.library, DEVICES[0])
    with pytest.raises(ResourceError) as caught:
        device.register(1 << 20, 1 << 30, 0, "the ring of stream 5")
    said = "the ring of stream 5 of 1,024 MiB cannot be registered with RDMA device 'rxe0': "
    assert str(caught.value).startswith(said)
    device.close()


def test_more_than_may_be_locked_names_the_limit(machine):
    """In a process of an ordinary user: root may lock what it likes."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.write(writing, _refusal_of_an_ordinary_user(machine).encode())
        os._exit(0)
    os.close(writing)
    with open(reading, encoding="utf-8") as pipe:
        said = pipe.read()
    assert os.waitpid(child, 0)[1] == 0
    assert said == (
        "the ring of stream 5 of 16 MiB cannot be registered with RDMA device 'rxe0': no memory "
        "can be locked (the limit is 8,192 KiB); raise it (ulimit -l unlimited, or memlock in "
        "/etc/security/limits.conf) or lower transport.ring_bytes"
    )


def _refusal_of_an_ordinary_user(machine: Machine) -> str:
    limit = 8 << 20
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (limit, limit))
    if machine.fabric is not None:
        machine.fabric.devices[DEVICES[0]].locked_bytes_max = limit
    else:
        os.setuid(65_534)
    device = Device(machine.library, DEVICES[0])
    small, large = (mmap.mmap(-1, nbytes) for nbytes in (1 << 20, 1 << 24))
    region: Region | None = None
    try:
        region = device.register(_address(small), 1 << 20, 0, "a small ring")
        device.register(_address(large), 1 << 24, 0, "the ring of stream 5")
    except ResourceError as error:
        return str(error) if region is not None else f"even the small one: {error}"
    return "registered"


def _address(memory: mmap.mmap) -> int:
    import numpy as np

    return int(np.frombuffer(memory, np.uint8).ctypes.data)
