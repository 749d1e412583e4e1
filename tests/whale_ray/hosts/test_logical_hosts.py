"""Logical hosts on one machine, without any privilege: they share nothing but the kernel.

A function that holds its worker's GIL delays no other worker; hosts share no memory; and as many
hosts as the papers' clusters have start in little time and memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import threading
import time
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest

import whale_ray as whale
from whale_ray.api.submission import submit
from whale_ray.deployment.processes.process_fleet import HostPlace, Launch
from whale_ray.testing import ListSource, Pause

pytestmark = pytest.mark.usefixtures("no_leaks")

PATIENCE_S = 280
GIB = 1 << 30
WORKERS, HOSTS = 6, 3

HOLDER = 4
"""Instance, and worker, that holds its GIL: on the last host, with worker 5 beside it."""
HOLD_S = 5
HOLDS_AT, ROWS, PAUSE_MS = 100, 900, 10.0
ROW_BYTES = 1 << 13
"""Of the large stream, a row; a ring holds 64."""

MANY = 30
START_S, CORES, MEMORY_BYTES = 120, 2, 12 * GIB
"""What starting many hosts may take on the smallest machine that we care for."""


class Holder(whale.Process):
    """Notes when each row came, and when it was done; one instance holds the GIL at one row."""

    def open(self, context: Any) -> None:
        self.instance = context.instance

    def on_row(self, row: Any, out: Any) -> None:
        began_ns = time.monotonic_ns()
        if row["n"] == HOLDS_AT and self.instance == HOLDER:
            ctypes.PyDLL(None).sleep(HOLD_S)  # unlike CDLL, PyDLL keeps the GIL
        ended_ns = time.monotonic_ns()
        out.emit_rows(
            [{"instance": self.instance, "n": row["n"], "began": began_ns, "ended": ended_ns}]
        )


class Count(whale.Process):
    """Counts its rows."""

    def open(self, context: Any) -> None:
        self.instance, self.rows = context.instance, 0

    def on_row(self, row: Any, out: Any) -> None:
        self.rows += 1

    def close(self, out: Any) -> None:
        out.emit_rows([{"instance": self.instance, "rows": self.rows}])


def broadcast(source: Any, process: type[whale.Process], instances: int) -> whale.Topology:
    """Return a topology whose rows all go to all instances."""
    topology = whale.Topology("one-to-many")
    rows = topology.source(source, id="rows")
    every = rows.broadcast().process(process, id="every", parallelism=instances)
    every.sink(whale.sinks.collect(), id="out")
    return topology


def paced(rows: int, **more: Any) -> ListSource:
    """Return a source of rows with a pause between any two."""
    return ListSource([item for n in range(rows) for item in ({"n": n, **more}, Pause(PAUSE_MS))])


class Passes(whale.Process):
    """Notes when each row came."""

    def on_row(self, row: Any, out: Any) -> None:
        out.emit_rows([{"n": row["n"], "began": time.monotonic_ns()}])


def longest_gap_ns(times: list[int], began_ns: int, ended_ns: int) -> int:
    """Return the longest time without any of `times` between two moments."""
    within = [began_ns, *(t for t in sorted(times) if began_ns < t < ended_ns), ended_ns]
    return max(later - earlier for earlier, later in pairwise(within))


@pytest.mark.long
@pytest.mark.parametrize("route", ["star", "chain"])
def test_a_held_gil_delays_no_other_worker(route: str) -> None:
    """Beside the stream to all, one goes to the worker beside the holder, on the same host.

    Its rows of a second fill its ring, so it goes on only as long as acknowledgements come back.
    """
    topology = broadcast(paced(ROWS), Holder, WORKERS)
    large = topology.source(paced(ROWS, to=HOLDER + 1, pad="x" * ROW_BYTES), id="large")
    beside = large.direct("to").process(Passes, id="beside", parallelism=WORKERS)
    beside.sink(whale.sinks.collect(), id="out-beside")
    settings = {
        "runtime.hosts": HOSTS,
        "runtime.route": route,
        "transport.ring_bytes": 64 * ROW_BYTES,
    }
    job = submit(topology, on="processes", workers=WORKERS, settings=settings).wait(PATIENCE_S)
    came = defaultdict(list)
    for row in job.results("out").to_arrow().to_pylist():
        came[row["instance"]].append(row)
    assert {instance: len(rows) for instance, rows in came.items()} == dict.fromkeys(
        range(WORKERS), ROWS
    )
    (held,) = (row for row in came[HOLDER] if row["n"] == HOLDS_AT)
    assert held["ended"] - held["began"] >= HOLD_S * 1_000_000_000
    for instance in set(came) - {HOLDER}:
        times = [row["began"] for row in came[instance]]
        assert longest_gap_ns(times, held["began"], held["ended"]) < HOLD_S * 1e9 / 2, instance
    times = job.results("out-beside").to_arrow()["began"].to_pylist()
    assert len(times) == ROWS
    assert longest_gap_ns(times, held["began"], held["ended"]) < HOLD_S * 1e9 / 2
    # Heartbeats went on, too: the hold is longer than the silence that breaks a link.
    links = [link for relay in job.metrics().relays for link in relay.links]
    assert len(links) >= 2 * (HOSTS - 1)
    assert not [link for link in links if link.failures]
    assert job.outcome().restarts == 0


def segments_of(process: psutil.Process) -> set[tuple[str, int]]:
    """Return the names and inodes of our memory that a process has mapped or opened."""
    found = set()
    proc = Path("/proc", str(process.pid))
    for line in (proc / "maps").read_text(encoding="utf-8").splitlines():
        _, _, _, _, inode, *name = line.split(maxsplit=5)
        found.add((*name, int(inode)))
    for link in (proc / "fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it was closed meanwhile
            found.add((os.readlink(link), link.stat().st_ino))
    return {
        (name[0].removesuffix(" (deleted)"), inode)
        for *name, inode in found
        if name and "whale-ray" in name[0] and name[0].startswith(("/memfd:", "/dev/shm/"))
    }


@pytest.mark.parametrize("kind", ["memfd", pytest.param("named", marks=pytest.mark.long)])
def test_no_memory_is_opened_by_two_hosts(kind: str, segments_alone: None) -> None:
    topology = whale.Topology("apart")
    rows = topology.source(paced(20_000), id="rows", parallelism=HOSTS)
    every = rows.broadcast().process(Count, id="every", parallelism=WORKERS)
    some = every.key_by("instance").process(Count, id="some", parallelism=WORKERS)
    some.sink(whale.sinks.collect(), id="out")
    launched: dict[int, list[psutil.Process]] = {host: [] for host in range(HOSTS)}

    def launcher(host: int) -> Launch:
        """Return what starts the processes of a host, and remembers them."""

        def launch(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
            process = subprocess.Popen(*arguments, **options)
            launched[host].append(psutil.Process(process.pid))
            return process

        return launch

    job = submit(
        topology,
        on="processes",
        workers=WORKERS,
        settings={"runtime.hosts": HOSTS, "transport.segment_kind": kind},
        places=[HostPlace(launch=launcher(host)) for host in range(HOSTS)],
    )
    wait_for_rows(job, "every", 100)
    opened = {
        host: set[tuple[str, int]]().union(
            *(segments_of(one) for root in roots for one in (root, *root.children(recursive=True)))
        )
        for host, roots in launched.items()
    }
    assert job.state == "running"
    job.stop()
    job.wait(PATIENCE_S)
    for host in range(HOSTS):
        assert len(opened[host]) > HOSTS, "rings, mirrors and a board"
        for other in range(host):
            assert not opened[host] & opened[other]


def wait_for_rows(job: whale.Job, operator: str, rows: int) -> None:
    """Wait until an operator has got some rows; fails if the job ends before."""
    tick = threading.Event()
    while True:
        if any(m.operator_id == operator and m.rows_in >= rows for m in job.metrics().operators):
            return
        assert job.state in {"starting", "running"}, job.state
        tick.wait(0.05)


@pytest.mark.long
def test_thirty_hosts_start_in_time_and_memory() -> None:
    """Time is counted in processor seconds, so that what else the machine does is left out."""
    # More rows than the test waits for, so the job runs until the test has read everything.
    source = whale.sources.poisson(100.0, lambda n, _: {"n": n}, limit=1_000_000)
    job = submit(
        broadcast(source, Count, MANY),
        on="processes",
        workers=MANY,
        settings={"runtime.hosts": MANY, "runtime.start_timeout_ms": 1000 * PATIENCE_S},
    )
    wait_for_rows(job, "every", 1)
    children = psutil.Process().children(recursive=True)
    times = [child.cpu_times() for child in children]
    memory = sum(child.memory_full_info().pss for child in children)
    assert len(children) >= 2 * MANY  # a worker and a relay each
    assert sum(time.user + time.system for time in times) < START_S * CORES
    assert memory < MEMORY_BYTES
    assert job.state == "running"
    job.stop(drain=True, timeout_s=PATIENCE_S)
    counted = {row["instance"]: row["rows"] for row in job.results("out").to_arrow().to_pylist()}
    (sent,) = (one.rows_out for one in job.metrics().operators if one.operator_id == "rows")
    assert sent > 0
    assert counted == dict.fromkeys(range(MANY), sent)
