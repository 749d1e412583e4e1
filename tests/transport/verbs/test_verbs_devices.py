"""Unusable devices, and a pyverbs that cannot be imported: the messages about them."""

from __future__ import annotations

import logging
import sys
import types

import pytest

from tests.transport.verbs.fabric import two_hosts
from whale_ray.configs.settings import TransportSettings
from whale_ray.transport.verbs import carriers, library
from whale_ray.transport.verbs.carriers import Carriers
from whale_ray.transport.verbs.device import Device, device_names
from whale_ray.transport.verbs.library import NoVerbsError, status_in_words
from whale_ray.transport.verbs.queue_pair import QueuePair


def test_no_device_at_all():
    fabric = two_hosts()
    fabric.devices.clear()
    assert device_names(fabric.library) == ()
    load = lambda: fabric.library  # noqa: E731  (a library is loaded by a call)
    with pytest.raises(NoVerbsError) as caught:
        Carriers(TransportSettings(between_hosts="verbs"), load)
    assert str(caught.value) == (
        "no RDMA device on this machine; whale-ray doctor looks for them; set "
        "transport.between_hosts to tcp, or to auto"
    )
    modest = Carriers(TransportSettings(), load)
    assert modest.offered == modest.offered_to("anybody", 0) == 0
    assert modest.why_not == "no RDMA device on this machine"


def test_a_kernel_without_devices_is_not_asked_twice(tmp_path, monkeypatch):
    monkeypatch.setattr(carriers, "_DEVICES", tmp_path)
    with pytest.raises(NoVerbsError) as caught:
        carriers.load_where_devices_are()
    assert str(caught.value) == (
        "no RDMA device on this machine; whale-ray doctor looks for them; set "
        "transport.between_hosts to tcp, or to auto"
    )


def test_a_port_that_is_down():
    fabric = two_hosts()
    fabric.devices["rxe0"].state = 1
    with pytest.raises(NoVerbsError) as caught:
        Device(fabric.library, "rxe0")
    assert str(caught.value) == (
        "RDMA device 'rxe0' has no active port; bring its network up, or set "
        "transport.between_hosts to tcp"
    )


def test_a_device_that_serves_no_reads():
    fabric = two_hosts()
    fabric.devices["rxe0"].reads = 0
    with pytest.raises(NoVerbsError) as caught:
        Device(fabric.library, "rxe0")
    assert str(caught.value) == (
        "RDMA device 'rxe0' allows no READ (max_qp_rd_atom 0, max_qp_init_rd_atom 0); name "
        "another, or set transport.between_hosts to tcp"
    )


def test_a_device_that_serves_one_read_at_a_time_is_used():
    fabric = two_hosts()
    fabric.devices["rxe0"].reads = 1
    limits = Device(fabric.library, "rxe0").limits
    assert (limits.reads, limits.reads_served) == (1, 1)


@pytest.mark.parametrize(
    ("lacking", "offered", "said"),
    [
        ("requests", 64, "max_qp_wr is 64, and a link takes 128"),
        ("completions", 255, "max_cqe is 255, and a link takes 256"),
        ("message_bytes", 4096, "max_msg_sz is 4,096, and a link takes 1,048,576"),
    ],
)
def test_a_device_that_offers_too_little(lacking, offered, said):
    fabric = two_hosts()
    setattr(fabric.devices["rxe0"], lacking, offered)
    with pytest.raises(NoVerbsError) as caught:
        Device(fabric.library, "rxe0")
    assert str(caught.value) == (
        f"RDMA device 'rxe0' offers too little: {said}; name another, or set "
        "transport.between_hosts to tcp"
    )
    assert not fabric.open


def test_a_device_without_an_address():
    fabric = two_hosts()
    fabric.devices["rxe0"].gids.clear()
    with pytest.raises(NoVerbsError, match="has no address; give its interface one"):
        Device(fabric.library, "rxe0")


def test_one_device_that_serves_is_enough():
    fabric = two_hosts()
    fabric.devices["rxe0"].state = 1
    found = Carriers(TransportSettings(between_hosts="verbs"), lambda: fabric.library)
    assert found.offered == found.offered_to("anybody", 0) == carriers.VERBS
    with pytest.raises(NoVerbsError, match="no active port"):
        Carriers(
            TransportSettings(between_hosts="verbs", rdma_device="rxe0"), lambda: fabric.library
        )
    found.close()


def test_a_peer_that_nobody_reaches():
    fabric = two_hosts()
    device = Device(fabric.library, "rxe0")
    pair = QueuePair(device, device.best_gid, 16, 4)
    peer = pair.own_address
    fabric.devices["rxe1"].gids[:] = []
    fabric.devices["rxe0"].gids[:] = ["fe80::1"]
    with pytest.raises(NoVerbsError) as caught:
        pair.connect(peer)
    assert str(caught.value).startswith(
        "RDMA device 'rxe0' reaches no queue pair at 192.0.2.1 from 192.0.2.1: "
    )
    pair.close()
    device.close()


def test_statuses_in_words():
    assert status_in_words(10) == "access refused by the peer"
    assert status_in_words(12) == "the peer does not answer"
    assert status_in_words(5) == "flushed"
    assert status_in_words(99) == "status 99"


@pytest.fixture
def unloaded():
    library.load.cache_clear()
    yield
    library.load.cache_clear()


def test_pyverbs_is_not_installed(unloaded, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyverbs", None)
    for name in [name for name in sys.modules if name.startswith("pyverbs.")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(NoVerbsError) as caught:
        library.load()
    assert str(caught.value).startswith("no RDMA verbs: pyverbs is not ins") or str(
        caught.value
    ).startswith("no RDMA verbs: pyverbs does not load (")
    assert str(caught.value).endswith(
        'install the system\'s python3-pyverbs, or pip install "whale-ray[rdma]" beside an '
        "rdma-core at least as new; or set transport.between_hosts to tcp"
    )


def test_pyverbs_that_does_not_load_meddles_with_no_logging(unloaded, monkeypatch):
    class Meddling(types.ModuleType):
        def __getattr__(self, name: str) -> object:
            logging.getLogger().addHandler(logging.NullHandler())
            msg = "version `IBVERBS_PRIVATE_59' not found"
            raise ImportError(msg)

    meddling = Meddling("pyverbs.device")
    monkeypatch.setitem(sys.modules, "pyverbs", types.ModuleType("pyverbs"))
    monkeypatch.setitem(sys.modules, "pyverbs.device", meddling)
    handlers = list(logging.getLogger().handlers)
    with pytest.raises(NoVerbsError, match="does not load .version `IBVERBS_PRIVATE_59' not found"):
        library.load()
    assert logging.getLogger().handlers == handlers
