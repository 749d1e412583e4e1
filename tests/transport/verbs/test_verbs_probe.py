"""What is found out about devices by trying them."""

from __future__ import annotations

from tests.transport.verbs.conftest import DEVICES, Machine
from tests.transport.verbs.fabric import two_hosts
from whale_ray.transport.verbs.frames import FRAME_BYTES
from whale_ray.transport.verbs.probe import probe
from whale_ray.transport.verbs.reports import DeviceReport

RING_BYTES = 4 << 20


def test_devices_that_lack_nothing(machine: Machine):
    one, other = probe(machine.library, RING_BYTES)
    assert (one.name, other.name) == DEVICES
    assert "192.0.2.1" in one.addresses
    assert "192.0.2.2" in other.addresses
    for report in (one, other):
        assert (report.lack, report.too_little_memory) == ("", "")
        assert report.reads >= 1
    assert machine.fabric is None or not machine.fabric.open


def test_each_lack_is_reported_with_its_device():
    fabric = two_hosts()
    fabric.devices["rxe0"].state = 1
    fabric.devices["rxe1"].locked_bytes_max = 96 * FRAME_BYTES
    down, poor = probe(fabric.library, RING_BYTES)
    assert down == DeviceReport(
        "rxe0",
        lack="RDMA device 'rxe0' has no active port; bring its network up, or set "
        "transport.between_hosts to tcp",
    )
    assert (poor.reads, poor.lack) == (16, "")
    said = "a ring of 4 MiB cannot be registered with RDMA device 'rxe1': no memory can be locked"
    assert poor.too_little_memory.startswith(said)
    assert not fabric.open


def test_memory_that_does_not_suffice_for_a_link():
    fabric = two_hosts()
    fabric.devices["rxe0"].locked_bytes_max = FRAME_BYTES
    report, _ = probe(fabric.library, RING_BYTES)
    assert report.lack.startswith("the frames of a link of 2 MiB cannot be registered with RDMA")
    assert "ulimit -l" in report.lack
    assert not fabric.open


def test_a_machine_without_devices():
    fabric = two_hosts()
    fabric.devices.clear()
    assert probe(fabric.library, RING_BYTES) == ()
