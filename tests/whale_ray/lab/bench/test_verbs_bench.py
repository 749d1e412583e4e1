"""What `whale-ray bench transport --only verbs` measures, and says where it cannot."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from whale_ray.lab.bench import transport, vega, verbs
from whale_ray.lab.bench.backends import MessageLoad
from whale_ray.lab.bench.channel_backends import OVER_TCP
from whale_ray.lab.bench.echoes import BareEcho, Echo, HostEcho, one_way_us
from whale_ray.lab.bench.peers import perftest
from whale_ray.lab.bench.python_side import AIM_NS, python_rows
from whale_ray.transport.verbs.library import NoVerbsError

MS = 1_000_000
EFFORT = verbs.VerbsEffort((4096,), 1, MS, (8, 512), 3, 8)


@pytest.fixture
def setting() -> verbs.Setting:
    """Return the devices; skip the test where there are none."""
    why_not = verbs.missing()
    if why_not:
        pytest.skip(f"no RDMA device to test with: {why_not}")
    return verbs.find_setting()


def no_devices() -> None:
    msg = "no RDMA device on this machine"
    raise NoVerbsError(msg)


def test_without_a_device_it_says_so_and_measures_the_rest(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(verbs, "load_where_devices_are", no_devices)
    (note,) = verbs.notes()
    assert note == f"Verbs were not measured: no RDMA device on this machine. {verbs.HOW_TO}."
    rows = verbs.verbs_rows(EFFORT)
    assert {row.name for row in rows} == {"Python side of a slice"}


def test_the_python_side_has_an_aim_only_where_nothing_is_emulated():
    here = python_rows(8, {})
    assert [row.aim is not None for row in here] == [True, True, False, False]
    assert here[0].aim is not None
    assert here[0].aim.limit == AIM_NS
    emulated: Mapping[str, object] = {"emulated": "QEMU TCG"}
    there = python_rows(8, emulated)
    assert all(row.aim is None and row.parameters["emulated"] for row in there)


@pytest.mark.parametrize(("processor", "says"), [("QEMU TCG CPU version 2.5+", True), ("X", False)])
def test_an_emulated_processor_is_named(
    monkeypatch: pytest.MonkeyPatch, processor: str, says: bool
):
    monkeypatch.setattr(verbs, "processor_name", lambda: processor)
    assert bool(verbs.emulated()) is says


def test_vega_is_compared_with_what_it_published():
    rows = vega.vega_rows(1, 0.002)
    assert {row.name for row in rows} == {"small message, one way", "messages"}
    published = [row for row in rows if row.against.startswith("Vega")]
    assert len(published) == len(rows) / 2
    assert all(row.value > 0 and row.ratio for row in rows)


def test_both_are_parts_of_the_suite():
    assert {"vega", "verbs"} <= set(transport.PARTS)


def echoed(echo: Echo) -> None:
    medians = one_way_us(echo, (8, 512), 3)
    assert set(medians) == {8, 512}
    assert min(medians.values()) > 0


def test_messages_come_back_over_tcp():
    echoed(HostEcho(OVER_TCP))


def test_perftest_reports_the_requested_figure(monkeypatch: pytest.MonkeyPatch):
    asked: list[list[str]] = []

    def client(_server: object, command: list[str]) -> str:
        asked.append(command)
        return " 65536  12.50\n"

    monkeypatch.setattr(perftest, "_ask", client)
    monkeypatch.setitem(perftest.BANDWIDTH, "read", "true")
    rate = perftest.bandwidth("read", ("rxe0", "rxe1"), (1, 1), 65536, 16)
    assert rate == 12.5 * (1 << 20)
    assert asked[0][:5] == ["true", "-d", "rxe1", "-x", "1"]


def test_perftest_that_prints_nothing_is_an_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(perftest, "_ask", lambda _server, _command: "")
    monkeypatch.setattr(perftest, "LATENCY", "true")
    with pytest.raises(RuntimeError, match="true printed no figure but ''"):
        perftest.latency_us(("a", "b"), (0, 0), 8, 10)


@pytest.mark.rdma
@pytest.mark.parametrize("way", ["read", "write", "send"])
def test_every_message_arrives(setting: verbs.Setting, way: str):
    load = MessageLoad(32 << 10, 1, 50 * MS)
    for sample in (verbs._ours(way, setting), verbs._bare(way, setting)):
        assert sample(load).messages >= load.chunk  # the readers' counts are compared


@pytest.mark.rdma
def test_messages_come_back_over_verbs(setting: verbs.Setting):
    echoed(HostEcho(setting.settings("write")))
    echoed(BareEcho(setting.devices))
