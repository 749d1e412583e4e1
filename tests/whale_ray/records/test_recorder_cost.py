"""What recording takes of a job with 480 instances: counted on a real one, and printed."""

from __future__ import annotations

import sys
import time

import whale_ray as whale
from whale_ray.api.job_requests import NewJob
from whale_ray.configs.settings import Settings
from whale_ray.control.supervisor import Supervisor
from whale_ray.deployment.local_fleet import LocalFleet
from whale_ray.records.recorder import RunRecorder
from whale_ray.transport.clock import SystemClock

INSTANCES = 480


class TimedRecorder(RunRecorder):
    """Counts its samples, and the processor time that they take."""

    samples, spent_ns = 0, 0

    def record(self, view):
        began_ns = time.thread_time_ns()
        asked = super().record(view)
        self.spent_ns += time.thread_time_ns() - began_ns
        self.samples += 1
        return asked


class Nothing(whale.Process):
    def on_batch(self, batch, out):
        pass


def test_480_instances_are_sampled_and_the_processor_time_is_printed(tmp_path):
    """A bound would fail on a slow machine; the aim is 2 % of a core with a sample a second."""
    topology = whale.Topology("sampled")
    rows = whale.sources.iterable(({"n": n} for n in range(20_000)), bounded=True)
    every = topology.source(rows, id="rows").key_by("n")
    every.process(Nothing, id="every", parallelism=INSTANCES).sink(whale.sinks.collect(), id="out")
    overrides = {"records.folder": str(tmp_path), "records.interval_ms": 1}
    settings = Settings().with_overrides(overrides)
    assignment = NewJob.checked(topology.logical_plan(), settings, 1).assignment(settings)
    clock = SystemClock()
    recorder = TimedRecorder(assignment, clock)
    outcome = Supervisor(assignment, LocalFleet(clock), clock, recorder=recorder).run()
    assert outcome.error is None and recorder.samples > 0
    assert sum(len(one.instances) for one in recorder.seen.values()) >= INSTANCES
    sys.stderr.write(f"{recorder.spent_ns / recorder.samples / 1e6:.1f} ms for each sample\n")
