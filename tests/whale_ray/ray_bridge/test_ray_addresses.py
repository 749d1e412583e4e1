"""Which Ray an address means, and the message if it means none; nothing is started."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator

import pytest

from whale_ray.errors import ResourceError, UsageError
from whale_ray.ray_bridge import addresses
from whale_ray.ray_bridge.addresses import resolve_address

Found = Callable[[str | None, list[str]], None]


@pytest.fixture
def listening() -> Iterator[int]:
    """Return a port of this machine at which something answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Found:
    """Say which Rays this machine has: the one that `ray start` noted, and all that run."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(addresses, "_enable_token", lambda: None)

    def found(recorded: str | None, running: list[str]) -> None:
        monkeypatch.setattr(addresses, "_recorded_and_running", lambda: (recorded, running))

    found(None, [])
    return found


def test_no_address_starts_a_ray_where_none_runs(machine: Found) -> None:
    assert resolve_address(None) is None


def test_no_address_joins_what_ray_start_left_running(machine: Found, listening: int) -> None:
    machine(f"127.0.0.1:{listening}", [])
    assert resolve_address(None) == f"127.0.0.1:{listening}"


def test_no_address_passes_over_a_note_of_a_dead_ray(machine: Found, closed_port: int) -> None:
    machine(f"127.0.0.1:{closed_port}", [])
    assert resolve_address(None) is None


def test_no_address_does_not_join_the_ray_of_another_process(machine: Found) -> None:
    machine(None, ["10.0.0.1:6379"])
    assert resolve_address(None) is None


def test_auto_joins_the_only_ray_that_runs(machine: Found) -> None:
    machine(None, ["10.0.0.1:6379"])
    assert resolve_address("auto") == "10.0.0.1:6379"


def test_the_environment_names_the_ray_of_a_submitted_script(
    machine: Found, listening: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ray.util import get_node_ip_address

    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{listening}")
    expected = f"{get_node_ip_address()}:{listening}"  # Ray never calls a host by its loopback
    assert resolve_address("auto") == resolve_address(None) == expected


def test_local_means_a_new_ray_whatever_the_environment_says(
    machine: Found, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert resolve_address("local") is None


def test_a_token_is_offered_to_this_machine_alone(
    machine: Found, listening: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    offered: list[bool] = []
    monkeypatch.setattr(addresses, "_enable_token", lambda: offered.append(True))
    resolve_address(f"127.0.0.1:{listening}")
    assert offered == [True]
    monkeypatch.setattr(addresses, "_silence", lambda host, port: "")
    resolve_address("203.0.113.7:6379")
    assert offered == [True]


def test_no_ray_at_an_address(machine: Found, closed_port: int) -> None:
    with pytest.raises(ResourceError) as raised:
        resolve_address(f"127.0.0.1:{closed_port}")
    assert str(raised.value) == (
        f"no Ray answers at 127.0.0.1:{closed_port}: connection refused; start one with "
        "`ray start --head`, correct the address, or leave it out to start a new Ray"
    )


def test_no_ray_at_the_address_of_the_environment(
    machine: Found, closed_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{closed_port}")
    with pytest.raises(ResourceError, match=r"127\.0\.0\.1:\d+ \(from RAY_ADDRESS\): connection"):
        resolve_address(None)


def test_an_unknown_host(machine: Found) -> None:
    with pytest.raises(ResourceError, match="the host 'no-such-host.invalid' is not known"):
        resolve_address("no-such-host.invalid:6379")


def test_auto_without_a_ray(machine: Found) -> None:
    with pytest.raises(ResourceError) as raised:
        resolve_address("auto")
    assert str(raised.value) == (
        "no Ray runs on this machine; start one with `ray start --head`, "
        "or leave out the address and a job starts its own"
    )


def test_auto_with_several_rays(machine: Found) -> None:
    machine(None, ["10.0.0.1:1", "10.0.0.1:2"])
    with pytest.raises(ResourceError) as raised:
        resolve_address("auto")
    assert str(raised.value) == (
        "several Rays run on this machine; pass the address of one of them: 10.0.0.1:1, 10.0.0.1:2"
    )


@pytest.mark.parametrize("address", ["nowhere", "host:", ":6379", "host:port", "host:70000"])
def test_an_invalid_address(machine: Found, address: str) -> None:
    with pytest.raises(UsageError) as raised:
        resolve_address(address)
    assert str(raised.value) == (
        f"the address {address!r} is none; write 'auto', 'local' or 'host:port'"
    )


def test_ray_client_is_refused(machine: Found) -> None:
    with pytest.raises(UsageError) as raised:
        resolve_address("ray://head:10001")
    assert str(raised.value) == (
        "the address 'ray://head:10001' is Ray Client's, through which no memory is shared; submit "
        "the script with `ray job submit`, or pass host:port on a node of the cluster"
    )
