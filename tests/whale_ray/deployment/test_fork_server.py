"""Processes are forked, reported when they end, and do not share what must differ."""

from __future__ import annotations

import errno
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

import whale_ray as whale
from tests.loaded_servers import LoadedServers
from whale_ray.api.submission import submit
from whale_ray.configs.errors import ResourceError
from whale_ray.deployment.members import LOCAL_ADDRESS
from whale_ray.deployment.processes.fork_server import ForkServer, Launch
from whale_ray.deployment.processes.process_fleet import HostPlace, ProcessFleet

PATIENCE_S = 150.0
"""A server may have to load everything first, which took 22 s with 30 processes on two cores."""
_POLL_S = 0.5


@contextmanager
def a_server(launch: Launch = subprocess.Popen, grace_ms: int = 3000) -> Iterator[ForkServer]:
    server = ForkServer(launch, grace_ms)
    try:
        yield server
    finally:
        server.close(PATIENCE_S)


def fork(server: ForkServer) -> tuple[int, socket.socket]:
    """Start a member that waits for its envelope; return its serial number and our socket."""
    ours, theirs = socket.socketpair()
    with theirs:
        try:
            return server.fork(0, LOCAL_ADDRESS, theirs), ours
        except BaseException:
            ours.close()
            raise


def test_each_process_ends_with_its_own_socket(no_leaks: None) -> None:
    with a_server() as server:
        first, second = fork(server), fork(server)
        assert server.wait(first[0], 0.0) is None
        first[1].close()
        assert server.wait(first[0], PATIENCE_S) == 1  # no envelope came
        assert server.pid(first[0]) != server.pid(second[0])
        assert server.wait(second[0], 0.0) is None
        second[1].close()
        assert server.wait(second[0], PATIENCE_S) == 1


def test_without_pidfds_the_other_ways_to_run_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int) -> int:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    with pytest.raises(ResourceError, match=r"\(Operation not permitted\): .* on Ray, or .*inline"):
        ForkServer()


def test_a_killed_process_is_reported_with_its_signal(
    loaded_servers: LoadedServers, no_leaks: None
) -> None:
    with a_server(loaded_servers) as server:
        serial, connection = fork(server)
        server.kill(serial)
        assert server.wait(serial, PATIENCE_S) == -signal.SIGKILL
        connection.close()


def started(server: ForkServer) -> tuple[int, int, socket.socket]:
    """Return serial number, process id and our socket of a process that runs."""
    serial, connection = fork(server)
    while (pid := server.pid(serial)) is None:
        assert server.wait(serial, _POLL_S) is None
    return serial, pid, connection


def test_a_process_that_hangs_is_killed_when_the_driver_is_gone(
    loaded_servers: LoadedServers, no_leaks: None
) -> None:
    with a_server(loaded_servers, grace_ms=50) as server:
        _, pid, connection = started(server)
        os.kill(pid, signal.SIGSTOP)
    assert not psutil.pid_exists(pid)
    connection.close()


@pytest.mark.long
def test_many_processes_do_not_fill_the_socket_between(
    loaded_servers: LoadedServers, no_leaks: None
) -> None:
    with a_server(loaded_servers) as server:
        members = [fork(server) for _ in range(300)]
        for _, connection in members:
            connection.close()
        assert {server.wait(serial, PATIENCE_S) for serial, _ in members} == {1}


def test_a_server_that_cannot_start_is_reported() -> None:
    def launch(_command: list[str], **options: Any) -> subprocess.Popen[Any]:
        return subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"], **options)

    server = ForkServer(launch)
    server._process.wait()
    with pytest.raises(ResourceError, match="starts workers ended with exit code 3"):
        fork(server)
    server.close(PATIENCE_S)


def test_without_its_server_a_process_is_killed_rather_than_lost(
    loaded_servers: LoadedServers, no_leaks: None
) -> None:
    with a_server(loaded_servers) as server:
        serial, _, connection = started(server)
        server._process.kill()
        server._process.wait()
        assert server.wait(serial, PATIENCE_S) == -signal.SIGKILL
        assert server.lost
        with pytest.raises(ResourceError, match="starts workers ended with exit code -9"):
            fork(server)
        connection.close()


def test_a_server_that_hangs_is_given_up_and_nobody_waits_for_it_again(
    loaded_servers: LoadedServers, no_leaks: None
) -> None:
    with a_server(loaded_servers) as server:
        serial, _, connection = started(server)
        os.kill(server._process.pid, signal.SIGSTOP)
        assert server.wait(serial, 0.0) is None
        server.give_up()
        assert server.wait(serial, PATIENCE_S) == -signal.SIGKILL
        assert server.lost
        assert re.fullmatch(
            r"the process that starts workers \(id \d+\) does not answer: it was stopped, or hangs",
            server.how_it_ended(),
        )
        with pytest.raises(ResourceError, match="does not answer"):
            fork(server)
        while connection.recv(1 << 16):
            pass  # until the process has ended
        connection.close()


class _Unnoticed(subprocess.Popen[Any]):
    """A process whose death nobody has noticed yet."""

    def poll(self) -> None:
        return None


def test_a_process_whose_server_dies_before_it_forks_is_started_by_another(no_leaks: None) -> None:
    servers: list[subprocess.Popen[Any]] = []

    def launch(command: list[str], **options: Any) -> subprocess.Popen[Any]:
        if servers:
            servers.append(subprocess.Popen(command, **options))
        else:
            servers.append(_Unnoticed([sys.executable, "-c", "raise SystemExit(3)"], **options))
            servers[0].wait()
        return servers[-1]

    fleet = ProcessFleet([HostPlace(launch=launch)])
    process = fleet._fork(0, fleet._places[0])
    assert len(servers) == 2
    process.close()
    assert process.end(PATIENCE_S).endswith("ended with exit code 1")  # no envelope came
    fleet.shutdown(0)


class Draw(whale.Process):
    """Draws from the random generators that every process has of its own; tells of garbage."""

    def on_batch(self, batch: whale.Batch, out: Any) -> None:
        import gc
        import random

        import numpy as np

        drawn = np.random.random()  # noqa: NPY002  # users do
        collects, kept = gc.isenabled(), gc.get_freeze_count()
        out.emit({"random": [random.random()], "numpy": [drawn], "on": [collects], "kept": [kept]})


def test_workers_draw_numbers_of_their_own_and_collect_only_garbage_of_theirs(
    no_leaks: None,
) -> None:
    topology = whale.Topology("draws")
    rows = topology.source(whale.sources.iterable([{"v": 1}]), id="rows")
    drawn = rows.broadcast().process(Draw, id="draw", parallelism=3)
    drawn.sink(whale.sinks.collect(), id="out")
    table = submit(topology, on="processes", workers=3).wait(100).results("out").to_arrow()
    assert len(set(table["random"].to_pylist())) == 3
    assert len(set(table["numpy"].to_pylist())) == 3
    assert all(table["on"].to_pylist())
    assert min(table["kept"].to_pylist()) > 100_000, "what was loaded is not looked at again"


CLOSED = """
import sys
import whale_ray as whale

def noisy(row):
    print("printed")
    print("printed", file=sys.stderr)
    return {"n": row.n + 1}

if __name__ == "__main__":
    topology = whale.Topology("closed")
    rows = topology.source(whale.sources.iterable([{"n": 1}]), id="rows")
    rows.shuffle().map(noisy, parallelism=2).sink(whale.sinks.json_lines(sys.argv[1]), id="out")
    whale.submit(topology, on="processes", workers=2).wait()
"""


def test_a_job_runs_where_the_standard_streams_are_closed(tmp_path: Path) -> None:
    """As in a daemon, whose first sockets would get their numbers."""
    (tmp_path / "job.py").write_text(CLOSED)
    command = 'exec "$0" "$@" <&- >&- 2>&-'
    arguments = [sys.executable, str(tmp_path / "job.py"), str(tmp_path / "out")]
    ended = subprocess.run(["sh", "-c", command, *arguments], timeout=PATIENCE_S, check=False)
    assert ended.returncode == 0
    parts = sorted((tmp_path / "out").glob("part-*"))
    assert "".join(part.read_text() for part in parts) == '{"n":2}\n'
