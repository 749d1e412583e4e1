"""The stopwatch that charges stages with processor time."""

import subprocess
import sys

from whale_ray.worker.stage_meter import NoMeter, ThreadTimeMeter


def test_a_stage_is_charged_with_the_time_since_the_last_lap():
    times = iter((100, 130, 135, 200))
    meter = ThreadTimeMeter(lambda: next(times))
    meter.begin()
    meter.charge(1)
    meter.charge(0)
    meter.charge(1)
    assert meter.cpu_ns == {1: 30 + 65, 0: 5}


def test_without_a_meter_nothing_is_charged():
    meter = NoMeter()
    meter.begin()
    meter.charge(1)
    assert meter.cpu_ns == {}


def test_what_pyarrow_loads_with_the_first_array_is_charged_to_no_stage():
    script = """
import sys, pyarrow as pa
from whale_ray.worker.stage_meter import stage_meter
stage_meter(measures=False)
assert "pandas" not in sys.modules
stage_meter(measures=True)
loaded = set(sys.modules)
pa.array([1, None])
assert sys.modules.keys() == loaded
"""
    subprocess.run([sys.executable, "-c", script], check=True)
