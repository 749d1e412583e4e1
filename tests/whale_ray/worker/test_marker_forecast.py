"""When the marker of the next checkpoint is expected."""

from whale_ray.worker.marker_forecast import MarkerForecast


def test_a_marker_is_due_an_interval_after_the_one_before():
    forecast = MarkerForecast(800)
    assert forecast.distance_ns(1_000) is None, "the job begins"
    assert [forecast.distance_ns(now) for now in (1_699, 1_700, 1_800, 1_850, 1_900, 1_901)] == [
        None,
        100,
        0,
        50,
        100,
        None,
    ]
    forecast.note(1_850)
    assert forecast.distance_ns(1_900) is None
    assert forecast.distance_ns(2_640) == 10
