"""Processes are forked, told of when they end, and do not share what must differ."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import pytest

import whale_ray as whale
from whale_ray.runtime.api import submit
from whale_ray.runtime.fork_server import ForkServer
from whale_ray.runtime.members import LOCAL_ADDRESS

PATIENCE_S = 60.0


@contextmanager
def a_server() -> Iterator[ForkServer]:
    server = ForkServer()
    try:
        yield server
    finally:
        server.close(PATIENCE_S)


def fork(server: ForkServer) -> tuple[int, Connection]:
    """Start a member that waits for its envelope; return its serial number and our socket."""
    ours, theirs = socket.socketpair()
    connection = Connection(ours.detach())
    with theirs:
        serial = server.fork(0, LOCAL_ADDRESS, theirs)
    return serial, connection


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


def test_a_killed_process_is_told_by_its_signal(no_leaks: None) -> None:
    with a_server() as server:
        serial, connection = fork(server)
        server.kill(serial)
        assert server.wait(serial, PATIENCE_S) == -signal.SIGKILL
        connection.close()


def test_without_its_server_a_process_is_killed_rather_than_lost(no_leaks: None) -> None:
    with a_server() as server:
        serial, connection = fork(server)
        while server.pid(serial) is None:
            server.wait(serial, PATIENCE_S / 100)
        server._process.kill()
        server._process.wait()
        assert server.wait(serial, PATIENCE_S) == -signal.SIGKILL
        assert server.lost
        with pytest.raises(OSError):  # whichever the kernel finds first
            fork(server)
        connection.close()


class Draw(whale.Process):
    """Draws from the random generators that every process has of its own."""

    def on_batch(self, batch: whale.Batch, out: Any) -> None:
        import random

        import numpy as np

        out.emit({"random": [random.random()], "numpy": [np.random.random()]})  # noqa: NPY002  # users do


def test_workers_do_not_share_the_state_of_random_generators(no_leaks: None) -> None:
    topology = whale.Topology("draws")
    rows = topology.source(whale.sources.iterable([{"v": 1}]), id="rows")
    drawn = rows.broadcast().process(Draw, id="draw", parallelism=3)
    drawn.sink(whale.sinks.collect(), id="out")
    table = submit(topology, on="processes", workers=3).wait(100).results("out").to_arrow()
    assert len(set(table["random"].to_pylist())) == 3
    assert len(set(table["numpy"].to_pylist())) == 3
