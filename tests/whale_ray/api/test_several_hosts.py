"""Jobs over several logical hosts: routes, a relay that is killed, wrong addresses."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

import whale_ray as whale
from whale_ray.api.submission import submit
from whale_ray.deployment.processes.process_fleet import HostPlace


class Keep(whale.Process):
    """Passes rows on; with `victim`, sends that process a signal, once, after row 500."""

    def __init__(
        self, victim: str = "", marker: Path = Path(), signal_number: int = signal.SIGKILL
    ) -> None:
        self.victim = victim
        self.marker = marker
        self.signal_number = signal_number
        self.seen = 0

    def open(self, context: whale.InstanceContext) -> None:
        self.instance = context.instance

    def on_batch(self, batch: whale.Batch, out: whale.Output) -> None:
        self.seen += batch.num_rows
        if self.victim and self.seen > 500 and self.instance == 0 and not self.marker.exists():
            self.marker.touch()
            os.kill(sibling(self.victim), self.signal_number)
        out.emit({"v": batch["v"], "instance": [self.instance] * batch.num_rows})


def sibling(name: str) -> int:
    """Return the process of that name that was forked from the same one as this."""
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            text = status.read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue  # others come and go
        if f"Name:\t{name}\n" in text and f"PPid:\t{os.getppid()}\n" in text:
            return int(status.parent.name)
    raise AssertionError(f"no process {name!r}")


def topology_of(rows: int, **options: Any) -> whale.Topology:
    topology = whale.Topology("hosts")
    source = topology.source(whale.sources.iterable([{"v": i} for i in range(rows)]), id="rows")
    kept = source.broadcast().process(lambda: Keep(**options), id="keep", parallelism=4)
    kept.sink(whale.sinks.collect(), id="out")
    return topology


def received(job: whale.Job) -> dict[int, list[int]]:
    """Return what each instance received, in order."""
    by_instance: dict[int, list[int]] = {}
    for row in job.results("out").to_arrow().to_pylist():
        by_instance.setdefault(row["instance"], []).append(row["v"])
    return by_instance


def assert_all_received(job: whale.Job, rows: int) -> None:
    assert received(job) == {instance: list(range(rows)) for instance in range(4)}


SMALL = {"runtime.source_batch_rows": 64, "transport.wtl_ms": 0.0, "runtime.hosts": 4}


@pytest.mark.parametrize("route", ["star", "chain"])
def test_every_instance_on_every_host_gets_every_row_once_and_in_order(
    route: str, no_leaks: None
) -> None:
    settings = {**SMALL, "runtime.route": route, "transport.ring_bytes": 65536}
    settings |= {"transport.ring_bytes_min": 65536}  # so that rings fill and wrap
    job = submit(topology_of(20_000), on="processes", workers=4, settings=settings).wait(100)
    assert_all_received(job, 20_000)
    relays = job.metrics().relays
    assert [relay.host for relay in relays] == ["host-0", "host-1", "host-2", "host-3"]
    sent = {(r.host, link.host) for r in relays for link in r.links if link.bytes_sent > 2e5}
    last = {"star": ["host-0"] * 3, "chain": ["host-0", "host-1", "host-2"]}[route]
    assert sent == set(zip(last, ["host-1", "host-2", "host-3"], strict=True))
    assert not any(link.failures for relay in relays for link in relay.links)
    assert {edge.target: edge.carried_by for edge in job.metrics().edges} == {
        "keep": "shared memory; between hosts tcp (3 links)",
        "out": "fused",
    }


def test_a_killed_relay_is_replaced_and_every_row_still_comes_once(
    tmp_path: Path, no_leaks: None
) -> None:
    topology = topology_of(5000, victim="whale relay 1", marker=tmp_path / "killed")
    settings = {**SMALL, "runtime.route": "chain"}
    job = submit(topology, on="processes", workers=4, settings=settings).wait(100)
    assert_all_received(job, 5000)
    assert (tmp_path / "killed").exists()
    assert job.outcome().restarts == 0


def test_a_host_that_falls_silent_makes_the_job_begin_anew(tmp_path: Path, no_leaks: None) -> None:
    """Its relay is stopped: nothing dies, but no heartbeat comes, and it does not abort either."""
    topology = topology_of(
        5000, victim="whale relay 2", marker=tmp_path / "stopped", signal_number=signal.SIGSTOP
    )
    settings = {
        **SMALL,
        "transport.heartbeat_interval_ms": 200,
        "transport.silence_timeout_ms": 1000,
        "runtime.unreachable_after_ms": 1000,
        "runtime.kill_grace_ms": 500,
    }
    job = submit(topology, on="processes", workers=4, settings=settings).wait(100)
    assert_all_received(job, 5000)
    assert job.outcome().restarts >= 1


def test_without_restarts_the_death_of_a_relay_is_named(tmp_path: Path, no_leaks: None) -> None:
    topology = topology_of(5000, victim="whale relay 2", marker=tmp_path / "killed")
    settings = {**SMALL, "runtime.max_restarts": 0, "multicast.repairs_max": 0}
    job = submit(topology, on="processes", workers=4, settings=settings)
    with pytest.raises(whale.errors.WorkerDiedError, match="relay of host-2 died .*signal 9"):
        job.wait(100)


@pytest.mark.long
def test_an_address_that_is_not_this_machines_is_named(no_leaks: None) -> None:
    places = [HostPlace(), HostPlace("192.0.2.1")]
    settings = {"runtime.hosts": 2}
    job = submit(topology_of(10), on="processes", workers=2, settings=settings, places=places)
    with pytest.raises(whale.errors.ResourceError, match=r"192\.0\.2\.1"):
        job.wait(100)


def test_as_many_places_as_hosts_are_needed() -> None:
    with pytest.raises(whale.errors.UsageError, match=r"1 place.* for 2 hosts \(runtime.hosts\)"):
        submit(
            topology_of(10),
            on="processes",
            workers=2,
            settings={"runtime.hosts": 2},
            places=[HostPlace()],
        )
    with pytest.raises(whale.errors.UsageError, match="places are for on='processes'"):
        submit(topology_of(10), places=[HostPlace()])


@pytest.mark.parametrize(
    "given", [{"address": "auto"}, {"detach": True}, {"queue": True}, {"runtime_env": {}}]
)
def test_what_only_ray_can_do_is_refused_elsewhere(given: dict[str, Any]) -> None:
    (name,) = given
    with pytest.raises(whale.errors.UsageError, match=f"{name}= has an effect only on Ray"):
        submit(topology_of(10), on="processes", **given)


def test_run_has_one_host_whatever_the_settings_say() -> None:
    job = whale.run(topology_of(10), settings={"runtime.hosts": 4})
    assert_all_received(job, 10)
