"""Logical hosts on one machine, without any privilege: they share nothing but the kernel.

A function that holds its worker's GIL delays no other worker; hosts share no memory; and as many
hosts as the papers' clusters have start in little time and memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import sys
import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

import whale_ray as whale
from tests.loaded_servers import LoadedServers
from whale_ray.api.submission import submit
from whale_ray.deployment.processes.process_fleet import HostPlace, Launch
from whale_ray.testing import ListSource, Pause

pytestmark = pytest.mark.usefixtures("no_leaks")

PATIENCE_S, TOLD_WITHIN_S = 280, 200
GIB = 1 << 30
WORKERS, HOSTS = 6, 3

HOLDER = 4
"""Instance, and worker, that holds its GIL: on the last host, with worker 5 beside it."""
HOLD_S = 5
"""For how long at least: longer than the silence that breaks a link."""
HOLDS_AT, GOES_ON_AT, ROWS, PAUSE_MS = 100, 400, 900, 10.0
"""The holder holds at one row, until all the others have come to a row long after it."""
ROW_BYTES = 1 << 13
"""Of the large stream, a row; a ring holds 64."""

MANY = 30
START_S, CORES, MEMORY_BYTES = 120, 2, 12 * GIB
"""What starting many hosts may take on the smallest machine that we care for."""


class Told:
    """A FIFO by which the others tell the holder that they go on, a byte each."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_RDWR)

    def tell(self) -> None:
        os.write(self._descriptor, b".")

    def hold_until_told(self, count: int) -> None:
        """Keep the GIL until `count` bytes have come, and for `HOLD_S`; raises TimeoutError."""
        keeping = ctypes.PyDLL(None)  # unlike CDLL, PyDLL keeps the GIL
        wanted = (ctypes.c_int * 2)(self._descriptor, select.POLLIN)  # a struct pollfd
        before_s = sys.getswitchinterval()
        sys.setswitchinterval(PATIENCE_S)  # nor is it given away between two calls
        try:
            keeping.sleep(HOLD_S)
            for _ in range(count):
                if keeping.poll(ctypes.byref(wanted), 1, TOLD_WITHIN_S * 1000) != 1:
                    raise TimeoutError("another worker does not go on while this one holds its GIL")
                keeping.read(self._descriptor, ctypes.create_string_buffer(1), 1)
        finally:
            sys.setswitchinterval(before_s)


class Holder(whale.Process):
    """Hands on its rows; one instance holds the GIL at one row until the others have gone on."""

    def __init__(self, fifo: str) -> None:
        self._fifo = fifo

    def open(self, context: Any) -> None:
        self.instance, self._told = context.instance, Told(self._fifo)

    def on_row(self, row: Any, out: Any) -> None:
        if self.instance == HOLDER and row["n"] == HOLDS_AT:
            self._told.hold_until_told(WORKERS)
        if self.instance != HOLDER and row["n"] == GOES_ON_AT:
            self._told.tell()
        out.emit_rows([{"instance": self.instance, "n": row["n"]}])


class Passes(whale.Process):
    """Hands on its rows, and tells the holder when it has gone on."""

    def __init__(self, fifo: str) -> None:
        self._fifo = fifo

    def open(self, context: Any) -> None:
        self._told = Told(self._fifo)

    def on_row(self, row: Any, out: Any) -> None:
        if row["n"] == GOES_ON_AT:
            self._told.tell()
        out.emit_rows([{"n": row["n"]}])


class Count(whale.Process):
    """Counts its rows."""

    def open(self, context: Any) -> None:
        self.instance, self.rows = context.instance, 0

    def on_row(self, row: Any, out: Any) -> None:
        self.rows += 1

    def close(self, out: Any) -> None:
        out.emit_rows([{"instance": self.instance, "rows": self.rows}])


def broadcast(source: Any, process: Callable[[], whale.Process], instances: int) -> whale.Topology:
    """Return a topology whose rows all go to all instances."""
    topology = whale.Topology("one-to-many")
    rows = topology.source(source, id="rows")
    every = rows.broadcast().process(process, id="every", parallelism=instances)
    every.sink(whale.sinks.collect(), id="out")
    return topology


def paced(rows: int, **more: Any) -> ListSource:
    """Return a source of rows with a pause between any two."""
    return ListSource([item for n in range(rows) for item in ({"n": n, **more}, Pause(PAUSE_MS))])


@pytest.mark.long
@pytest.mark.parametrize("route", ["star", "chain"])
def test_a_held_gil_delays_no_other_worker(route: str, tmp_path: Path) -> None:
    """Beside the stream to all, one goes to the worker beside the holder, on the same host.

    The rows after the held one that all must have before it ends fill several rings of it, so they
    come only if acknowledgements come back.
    """
    fifo = str(tmp_path / "told")
    os.mkfifo(fifo)
    topology = broadcast(paced(ROWS), partial(Holder, fifo), WORKERS)
    large = topology.source(paced(ROWS, to=HOLDER + 1, pad="x" * ROW_BYTES), id="large")
    beside = large.direct("to").process(partial(Passes, fifo), id="beside", parallelism=WORKERS)
    beside.sink(whale.sinks.collect(), id="out-beside")
    settings = {
        "runtime.hosts": HOSTS,
        "runtime.route": route,
        "transport.ring_bytes": 64 * ROW_BYTES,
    }
    job = submit(topology, on="processes", workers=WORKERS, settings=settings).wait(PATIENCE_S)
    came = Counter(row["instance"] for row in job.results("out").to_arrow().to_pylist())
    assert came == dict.fromkeys(range(WORKERS), ROWS)
    assert job.results("out-beside").rows == ROWS
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
def test_no_memory_is_opened_by_two_hosts(
    kind: str, loaded_servers: LoadedServers, segments_alone: None
) -> None:
    topology = whale.Topology("apart")
    rows = topology.source(paced(20_000), id="rows", parallelism=HOSTS)
    every = rows.broadcast().process(Count, id="every", parallelism=WORKERS)
    some = every.key_by("instance").process(Count, id="some", parallelism=WORKERS)
    some.sink(whale.sinks.collect(), id="out")
    launched: dict[int, list[psutil.Process]] = {host: [] for host in range(HOSTS)}

    def launcher(host: int) -> Launch:
        """Return what starts the processes of a host, and remembers them."""

        def launch(*arguments: Any, **options: Any) -> Any:
            process = loaded_servers(*arguments, **options)
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
