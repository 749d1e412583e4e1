"""The stopwatch that charges stages with processor time."""

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
