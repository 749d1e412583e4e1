"""Hosts as network namespaces: reachability, rates, and the effect of a cut on connections.

Plain sockets, opened by this process inside the hosts. A silence is asserted by a short time-out:
a machine that is too slow could only make such a test pass.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import subprocess
import sys
import threading
import time

import psutil
import pytest

from whale_ray.configs.errors import ResourceError, UsageError
from whale_ray.testing.hosts import Capability, Host, NamespaceHosts, host, namespaces, owners
from whale_ray.testing.hosts.owners import (
    NAMESPACES,
    folder_of,
    kill_all_in,
    namespaces_of,
    processes_in,
)

pytestmark = pytest.mark.usefixtures("hosts_possible")

PATIENCE_S = 60
SILENCE_S = 0.3
MB = 1_000_000
BURST_BYTES = 64 * 1024
LIMITED_S = (2 * MB - BURST_BYTES) / 2e6
"""What 2 MB take at 16 Mbit/s on any machine: no more than a burst goes without waiting."""


def joined(one: Host, two: Host) -> tuple[socket.socket, socket.socket]:
    """Return the ends of a new TCP connection from `one` to `two`."""
    with two.entered():
        listener = socket.create_server((two.address, 0))
    with listener:
        with one.entered():
            dialled = socket.create_connection(listener.getsockname(), PATIENCE_S)
        accepted, _ = listener.accept()
    accepted.settimeout(PATIENCE_S)
    return dialled, accepted


def is_silent(receiver: socket.socket) -> bool:
    """Tell whether nothing arrives for a while."""
    receiver.settimeout(SILENCE_S)
    try:
        return not receiver.recv(1)
    except TimeoutError:
        return True
    finally:
        receiver.settimeout(PATIENCE_S)


def seconds_for(nbytes: int, one: Host, two: Host) -> float:
    """Return how long `nbytes` take from `one` to `two`."""
    sender, receiver = joined(one, two)
    with sender, receiver:
        thread = threading.Thread(target=sender.sendall, args=(bytes(nbytes),))
        before = time.monotonic()
        thread.start()
        left = nbytes
        while left:
            left -= len(receiver.recv(min(left, 1 << 16)))
        thread.join()
        return time.monotonic() - before


def is_free(one: Host, two: Host) -> bool:
    """Tell whether 2 MB ever take much less time than over the limited link."""
    until_s = time.monotonic() + PATIENCE_S
    while seconds_for(2 * MB, one, two) > LIMITED_S / 5:  # other processes may slow it down
        if time.monotonic() > until_s:
            return False
    return True


def test_hosts_reach_each_other_and_nothing_else():
    with NamespaceHosts(3) as hosts:
        assert [one.address for one in hosts] == ["10.77.0.1", "10.77.0.2", "10.77.0.3"]
        for one, two in ((0, 1), (1, 2), (2, 0), (1, 1)):
            sender, receiver = joined(hosts[one], hosts[two])
            with sender, receiver:
                assert sender.getsockname()[0] == hosts[one].address
                sender.sendall(b"?")
                assert receiver.recv(1) == b"?"
        with hosts[0].entered(), socket.socket() as stranger:
            assert stranger.connect_ex(("192.0.2.1", 9)) == errno.ENETUNREACH


def test_thirty_hosts():
    with NamespaceHosts(30) as hosts:
        sender, receiver = joined(hosts[0], hosts[29])
        with sender, receiver:
            sender.sendall(b"?")
            assert receiver.recv(1) == b"?"


def test_addresses_go_beyond_a_byte():
    assert [namespaces.address_of(index) for index in (0, 254, 255, 999)] == [
        "10.77.0.1",
        "10.77.0.255",
        "10.77.1.0",
        "10.77.3.232",
    ]


def test_a_thread_leaves_a_host_as_it_came():
    with NamespaceHosts(1) as hosts:
        before = own_namespace()
        with hosts[0].entered():
            assert own_namespace() == (NAMESPACES / hosts[0].name).stat().st_ino != before
        with pytest.raises(ZeroDivisionError), hosts[0].entered():
            raise ZeroDivisionError
        assert own_namespace() == before


def own_namespace() -> int:
    """Return the inode of the namespace that this thread is in."""
    with open("/proc/thread-self/ns/net", "rb") as link:
        return os.fstat(link.fileno()).st_ino


def test_a_process_lives_in_its_host():
    with NamespaceHosts(2) as hosts:
        program = "import socket; print(socket.if_nameindex()); input()"
        process = hosts[1].popen(
            [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert b"eth0" in process.stdout.readline()
        assert [one.pid for one in processes_in([hosts[1].name])] == [process.pid]
        process.communicate(b"\n", PATIENCE_S)
        assert process.returncode == 0


def test_the_power_of_a_host_goes():
    with NamespaceHosts(2) as hosts:
        children = [one.popen(["sh", "-c", "setsid sleep 1000 & exec sleep 1000"]) for one in hosts]
        hosts[0].kill_all()
        assert children[0].returncode == -9
        assert children[1].poll() is None
        assert not processes_in([hosts[0].name])


def test_a_killed_process_that_nobody_reaps_has_ended():
    with NamespaceHosts(1) as hosts:
        (name,) = [one.name for one in hosts]
        script = f"ip netns exec {name} sh -c 'echo begun; exec sleep 1000' & exec sleep 1000"
        with subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE) as careless:
            try:
                assert careless.stdout.readline() == b"begun\n"
                (child,) = processes_in([name])
                kill_all_in([name])
                assert child.status() == psutil.STATUS_ZOMBIE
            finally:
                careless.kill()


def test_a_process_that_does_not_end_is_named(monkeypatch):
    with NamespaceHosts(1) as hosts:
        process = hosts[0].popen(["sleep", "1000"])
        with monkeypatch.context() as patched:
            patched.setattr(owners, "_END_TIMEOUT_NS", 0)
            patched.setattr(psutil.Process, "kill", lambda process: None)
            message = f"^killed, but not ended: processes {process.pid}$"
            with pytest.raises(ResourceError, match=message):
                kill_all_in([hosts[0].name])


def test_a_missing_command_exits_with_127():
    with NamespaceHosts(1) as hosts:
        process = hosts[0].popen(["no-such-command"], stderr=subprocess.PIPE)
        _, told = process.communicate(timeout=PATIENCE_S)
        assert (process.returncode, b"no-such-command" in told) == (127, True)


@pytest.mark.parametrize("limited", [0, 1], ids=["sender", "receiver"])
def test_a_rate_limits_both_directions(limited):
    with NamespaceHosts(2) as hosts:
        assert is_free(hosts[0], hosts[1])
        hosts[limited].set_rate(16)
        assert seconds_for(2 * MB, hosts[0], hosts[1]) >= LIMITED_S
        hosts[limited].set_rate(None)
        assert is_free(hosts[0], hosts[1])


def test_a_rate_given_at_the_start_can_be_changed_under_way():
    with NamespaceHosts(2, rate_mbit=1) as hosts:  # 20 MB would take 160 seconds
        sender, receiver = joined(hosts[0], hosts[1])
        with sender, receiver:
            thread = threading.Thread(target=sender.sendall, args=(bytes(20 * MB),))
            before = time.monotonic()
            thread.start()
            left = 20 * MB - len(receiver.recv(1000))
            for one in hosts:
                one.set_rate(400)
            while left:
                left -= len(receiver.recv(1 << 16))
            thread.join()
            assert time.monotonic() - before < 100


@pytest.mark.parametrize("between", [False, True], ids=["link", "pair"])
@pytest.mark.parametrize("cutter", [0, 1])
def test_a_cut_is_silent_and_a_healed_connection_goes_on(between, cutter):
    with NamespaceHosts(3) as hosts:
        sender, receiver = joined(hosts[0], hosts[1])
        with sender, receiver:
            sender.sendall(b"1")
            assert receiver.recv(1) == b"1"
            other = hosts[1 - cutter] if between else None
            hosts[cutter].cut(other)
            sender.sendall(b"2")
            receiver.sendall(b"3")
            assert is_silent(receiver)
            assert is_silent(sender)
            hosts[cutter].heal(other)
            assert receiver.recv(1) == b"2"
            sender.settimeout(PATIENCE_S)
            assert sender.recv(1) == b"3"


def test_a_cut_between_two_leaves_the_third_alone():
    with NamespaceHosts(3) as hosts:
        hosts[0].cut(hosts[1])
        for one in (0, 1):
            sender, receiver = joined(hosts[one], hosts[2])
            with sender, receiver:
                sender.sendall(b"?")
                assert receiver.recv(1) == b"?"


def test_a_dial_over_a_cut_link_gets_no_answer():
    with NamespaceHosts(2) as hosts:
        with hosts[1].entered():
            listener = socket.create_server((hosts[1].address, 0))
        with listener:
            hosts[1].cut()
            with hosts[0].entered(), socket.socket() as dialling:
                dialling.settimeout(SILENCE_S)
                with pytest.raises(TimeoutError):
                    dialling.connect(listener.getsockname())
            hosts[1].heal()
            with hosts[0].entered():
                socket.create_connection(listener.getsockname(), PATIENCE_S).close()


def test_healing_what_is_whole_changes_nothing():
    with NamespaceHosts(2) as hosts:
        hosts[0].heal()
        hosts[0].heal(hosts[1])
        sender, receiver = joined(hosts[0], hosts[1])
        with sender, receiver:
            sender.sendall(b"?")
            assert receiver.recv(1) == b"?"


def test_all_is_gone_afterwards_also_after_an_exception():
    seen: list[tuple[NamespaceHosts, str, list[subprocess.Popen[bytes]]]] = []

    def use_and_fail() -> None:
        with NamespaceHosts(2) as hosts:
            (hosts.folder / "file").touch()
            nested = ["sh", "-c", "setsid sleep 1000 & exec sleep 1000"]
            seen.append((hosts, hosts.folder.name, [one.popen(nested) for one in hosts]))
            assert len(namespaces_of(hosts.folder.name)) == 3
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        use_and_fail()
    ((hosts, mark, children),) = seen
    assert not namespaces_of(mark)
    assert not folder_of(mark).exists()
    assert [one.returncode for one in children] == [-9, -9]
    hosts.close()


def test_what_was_made_is_gone_if_the_rest_fails(monkeypatch):
    monkeypatch.setattr(namespaces, "_switch_commands", lambda hosts: ["link add nothing"])
    hosts = NamespaceHosts(2)
    with pytest.raises(ResourceError, match=r"`ip -n whale-ray-\S+-switch -batch -` failed: "):
        hosts.__enter__()
    assert not namespaces_of(hosts.folder.name)


def test_a_delay_that_the_kernel_lacks_is_left_out_with_a_warning(monkeypatch, caplog):
    monkeypatch.setattr(namespaces, "capability", lambda: Capability("", delays=False))
    with caplog.at_level(logging.WARNING), NamespaceHosts(1, delay_ms=5) as hosts:
        assert (hosts.delay_ms, hosts[0].delay_ms) == (0, 0)
    assert "this kernel has no netem: links have no delay of 5 ms" in caplog.text


def test_a_delayed_link_delays_before_it_limits(monkeypatch):
    called = []
    monkeypatch.setattr(host, "tc", lambda *arguments: called.append(" ".join(arguments)))
    Host(3, "ours", "10.77.0.4", "switch", rate_mbit=8, delay_ms=2.5).shape()
    limit = "tbf rate 8000000bit burst 65536b limit 131072b"
    assert called == [
        f"ours qdisc replace dev eth0 root handle 3: {limit}",
        "switch qdisc replace dev host3 root handle 2: netem limit 100000 delay 2.5ms",
        f"switch qdisc replace dev host3 parent 2:1 handle 3: {limit}",
    ]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"count": 0}, "0 hosts cannot be made; 1 to 1,000 can"),
        ({"count": 1001}, "1001 hosts cannot be made; 1 to 1,000 can"),
        ({"count": 1, "rate_mbit": 0}, "delay_ms=0.0 or rate_mbit=0 is below"),
        ({"count": 1, "delay_ms": -1}, "delay_ms=-1 or rate_mbit=None is below"),
    ],
)
def test_impossible_hosts_are_refused(wrong, message):
    with pytest.raises(UsageError, match=message):
        NamespaceHosts(**wrong)


def test_impossible_links_are_refused():
    with NamespaceHosts(2) as hosts, NamespaceHosts(1) as others:
        with pytest.raises(UsageError, match=r"a link of 0 Mbit/s carries nothing; use cut\(\)"):
            hosts[0].set_rate(0)
        for stranger in (hosts[0], others[0]):
            with pytest.raises(UsageError, match="name another host of the same hosts"):
                hosts[0].cut(stranger)
