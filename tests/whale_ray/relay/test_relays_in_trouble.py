"""Jobs whose relays stop, are cut off from their driver, or die two at once."""

from __future__ import annotations

import os
import signal
import socket
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import whale_ray as whale
from tests.whale_ray.api.test_several_hosts import SMALL, assert_all_received, sibling
from whale_ray.api.job import Job
from whale_ray.api.submission import submit
from whale_ray.control.controller_events import AttemptLost
from whale_ray.control.fleet import MemberMessage
from whale_ray.control.tree_session import TreeSession
from whale_ray.deployment.processes import process_fleet
from whale_ray.multicast.switch_messages import Starved
from whale_ray.multicast.tree_messages import TreeReport

ROWS = 5000
NARROW = {
    **SMALL,
    "runtime.route": "chain",
    "transport.ring_bytes": 65536,
    "transport.ring_bytes_min": 65536,
}
"""Rings that do not hold the whole stream: a reader that waits holds up all."""


class Keep(whale.Process):
    """Keeps every row; one of the instances does something amid the stream, once."""

    def __init__(self, marker: Path, victims: tuple[str, ...] = (), number: int = 0) -> None:
        self.marker, self.victims, self.number = marker, victims, number

    def open(self, context: whale.ProcessContext) -> None:
        self.instance, self.seen = context.instance, 0

    def on_batch(self, batch: whale.Batch, out: whale.Output) -> None:
        self.seen += batch.num_rows
        if self.seen > 500 and self.instance == 0 and not self.marker.exists():
            self.marker.touch()
            for victim in [sibling(name) for name in self.victims]:
                os.kill(victim, self.number)
        out.emit({"v": batch["v"], "instance": [self.instance] * batch.num_rows})


def begun(keep: Any, **settings: object) -> Job:
    topology = whale.Topology("trouble")
    source = topology.source(whale.sources.iterable([{"v": i} for i in range(ROWS)]), id="rows")
    kept = source.broadcast().process(keep, id="keep", parallelism=4)
    kept.sink(whale.sinks.collect(), id="out")
    return submit(topology, on="processes", workers=4, settings={**NARROW, **settings})


@pytest.mark.parametrize("host", [0, 1])
def test_a_relay_that_ends_in_order_can_be_replaced(tmp_path, no_leaks, monkeypatch, host):
    """As on Ray, when its actor is killed: it gives everything back, and its successor goes on."""
    marker, cut = tmp_path / "marker", tmp_path / "cut"
    genuine = process_fleet.ProcessFleet.next_event

    def next_event(self: Any, timeout_ns: int) -> Any:
        if marker.exists() and not cut.exists():
            cut.touch()
            descriptor = os.dup(self._processes[4 + host].socket.fileno())
            with socket.socket(fileno=descriptor) as ending:
                ending.shutdown(socket.SHUT_RDWR)
        return genuine(self, timeout_ns)

    monkeypatch.setattr(process_fleet.ProcessFleet, "next_event", next_event)
    job = begun(partial(Keep, marker)).wait(100)
    assert_all_received(job, ROWS)
    assert cut.exists()
    assert job.outcome().restarts == 0


@pytest.mark.parametrize("route", ["chain", "star"])
def test_two_relays_that_die_at_once_are_replaced(tmp_path, no_leaks, route):
    victims = ("whale relay 1", "whale relay 2")
    marker = tmp_path / "killed"
    job = begun(partial(Keep, marker, victims, signal.SIGKILL), **{"runtime.route": route}).wait(
        100
    )
    assert_all_received(job, ROWS)
    assert marker.exists()
    assert job.outcome().restarts == 0


@pytest.mark.long
def test_a_stopped_relay_blocks_neither_the_driver_nor_for_ever_the_job(
    tmp_path, no_leaks, monkeypatch
):
    """Messages to it pile up in a socket that it does not read."""
    genuine = socket.socketpair

    def narrow(*kind: int) -> tuple[socket.socket, socket.socket]:
        ours, theirs = genuine(*kind)
        if not kind:
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        return ours, theirs

    monkeypatch.setattr(process_fleet.socket, "socketpair", narrow)
    marker = tmp_path / "stopped"
    job = begun(
        partial(Keep, marker, ("whale relay 2",), signal.SIGSTOP),
        **{
            "runtime.unreachable_after_ms": 3000,
            "runtime.kill_grace_ms": 500,
            "multicast.patience_ms": 100,
        },
    )
    job.set_route("star")
    job.wait(100)
    assert_all_received(job, ROWS)
    assert marker.exists()
    assert job.outcome().restarts == 1


def test_when_the_source_has_lost_bytes_the_job_begins_anew_at_once(
    tmp_path, no_leaks, monkeypatch
):
    """The relay that says so is aborted like the others, though nothing has happened to it."""
    marker = tmp_path / "marker"
    changed: list[MemberMessage] = []
    genuine = TreeSession.take

    def take(self: TreeSession, message: MemberMessage, now_ns: int) -> AttemptLost | None:
        if not changed and message.member == 4 and marker.exists():
            changed.append(message)
            (stream,) = self.trees
            starved = Starved(1, 0, 0, 1, 0, 64)
            message = MemberMessage(
                message.member, message.attempt, TreeReport(((stream, starved),))
            )
        return genuine(self, message, now_ns)

    monkeypatch.setattr(TreeSession, "take", take)
    patience = {"runtime.unreachable_after_ms": 600_000, "runtime.kill_grace_ms": 600_000}
    job = begun(partial(Keep, marker), **patience, **{"multicast.report_interval_ms": 50}).wait(100)
    assert_all_received(job, ROWS)
    assert job.outcome().restarts == 1
