"""Hosts are removed however their owner ends; after a SIGKILL, by the next owner's sweep."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest

from tests.runs import await_ends, has_ended
from whale_ray.testing.hosts import sweep
from whale_ray.testing.hosts.owners import folder_of, namespaces_of, processes_in

pytestmark = pytest.mark.usefixtures("hosts_possible")

PATIENCE_S = 60
OWNER = """
import select
import signal
import subprocess
import sys
from contextlib import suppress
from whale_ray.testing.hosts import NamespaceHosts

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
with NamespaceHosts(2) as hosts:
    child = hosts[0].popen(["sleep", "1000"])
    script = "setsid sleep 1000 & echo begun; exec sleep 1000"
    hosts[1].popen(["sh", "-c", script], stdout=subprocess.PIPE).stdout.readline()
    print(hosts.folder.name, child.pid, flush=True)
    # With limits, again and again: Python looks for signals before it waits, but one that comes on
    # the way from there into the system call is seen only when that ends.
    while sys.argv[1] == "wait" and child.poll() is None:
        with suppress(subprocess.TimeoutExpired):
            child.wait(1)
    while not select.select([sys.stdin], [], [], 1)[0]:
        pass
"""
SHORT_LIVED_OWNER = """
import os
import signal
from whale_ray.testing.hosts import NamespaceHosts

with NamespaceHosts(1) as hosts:
    os.write(1, hosts.folder.name.encode())
    hosts[0].popen(["sleep", "1000"])  # its standard output is ours: who reads, waits for both
    signal.raise_signal(signal.SIGKILL)
"""


@contextmanager
def owner(does: str) -> Iterator[tuple[subprocess.Popen[str], str, psutil.Process]]:
    """Yield a process that owns hosts, their mark, and a direct child of it in host 0."""
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, does],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            mark, child = process.stdout.readline().split()
            assert len(namespaces_of(mark)) == 3
            yield process, mark, psutil.Process(int(child))
        finally:
            process.kill()


def assert_nothing_left(mark: str, child: psutil.Process) -> None:
    """Assert that namespaces, processes and files of a mark are gone."""
    assert not namespaces_of(mark)
    assert not folder_of(mark).exists()
    assert has_ended(child)


@pytest.mark.parametrize("does", ["read", "wait"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_owner_that_is_told_to_end_cleans_up(number, does):
    with owner(does) as (process, mark, child):
        process.send_signal(number)
        assert process.wait(PATIENCE_S) == -number
        assert_nothing_left(mark, child)


def test_the_end_of_a_script_cleans_up():
    with owner("read") as (process, mark, child):
        process.communicate("\n", PATIENCE_S)
        assert process.returncode == 0
        assert_nothing_left(mark, child)


def test_what_a_killed_owner_leaves_is_swept():
    with owner("read") as (process, mark, child):
        process.kill()
        process.wait(PATIENCE_S)
        assert not await_ends([child], PATIENCE_S)  # at once
        assert processes_in(namespaces_of(mark))  # what it had started in turn
        assert mark in sweep()
        assert_nothing_left(mark, child)


def test_a_child_ends_with_an_owner_that_is_killed_as_soon_as_it_is_started():
    program = [sys.executable, "-c", SHORT_LIVED_OWNER]
    try:
        done = subprocess.run(program, stdout=subprocess.PIPE, timeout=PATIENCE_S, check=False)
    finally:
        swept = sweep()
    assert done.returncode == -signal.SIGKILL
    assert done.stdout.decode() in swept


def test_what_a_living_owner_has_is_not_swept():
    with owner("read") as (process, mark, _):
        assert mark not in sweep()
        assert len(namespaces_of(mark)) == 3
        process.communicate("\n", PATIENCE_S)


def test_an_owner_that_nobody_has_waited_for_is_gone(monkeypatch):
    with owner("read") as (process, mark, child):
        process.kill()
        assert not await_ends([child], PATIENCE_S)
        assert mark in sweep()  # the owner is a zombie until the end of this block
        assert_nothing_left(mark, child)
