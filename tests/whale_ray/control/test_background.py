"""Calls beside the controller's loop: when it asks for their results."""

import threading
from itertools import pairwise

from whale_ray.control.background import POLL_NS, Background
from whale_ray.transport.clock import SystemClock


class SteppedClock(SystemClock):
    """The system's clock to the code that asks what kind it is, with a time that tests set."""

    def __init__(self):
        self.now_ns = 0

    def monotonic_ns(self):
        """Return the time that was set."""
        return self.now_ns


def unfailing(error):
    raise AssertionError(error)


def test_a_result_is_asked_for_ever_more_rarely():
    clock, answer = SteppedClock(), threading.Event()
    background = Background(clock)
    assert background.next_due_ns is None
    background.begin("manifest", answer.wait, unfailing, 10**12, who="it")
    asked = []
    while clock.now_ns < 100 * POLL_NS:
        clock.now_ns = background.next_due_ns
        asked.append(clock.now_ns)
        assert background.poll() == []
    assert asked[0] == POLL_NS and len(asked) < 15
    for before, now in pairwise(asked):
        assert now - before <= max(POLL_NS, before // 2)
    answer.set()
    assert background.has_returned("manifest", 60)
    assert background.poll() == [True] and background.next_due_ns is None


def test_it_says_when_an_awaited_result_is_there():
    woken = threading.Event()
    background = Background(SteppedClock(), woken.set)
    background.begin("retention", lambda: 7, unfailing, 10**12, who="it", awaited=False)
    assert background.has_returned("retention", 60) and not woken.is_set()
    background.begin("manifest", lambda: 8, unfailing, 10**12, who="it")
    assert woken.wait(60) and background.poll() == [7, 8]
    woken.clear()
    background.begin("commit", lambda: 1 // 0, repr, 10**12, who="it")
    assert woken.wait(60) and "ZeroDivisionError" in background.poll()[0]


def test_nobody_asks_for_what_is_not_awaited():
    clock = SteppedClock()
    background = Background(clock)
    background.begin("retention", lambda: 7, unfailing, 1_000 * POLL_NS, who="it", awaited=False)
    assert background.next_due_ns == 1_000 * POLL_NS
    assert background.has_returned("retention", 60)
    assert background.poll() == [7] and not background.is_busy("retention")


def test_a_call_waits_until_the_one_before_has_returned():
    clock, hung = SteppedClock(), threading.Event()
    background = Background(clock)
    background.begin("commit", hung.wait, str, 5_000_000, who="the disk")
    clock.now_ns = 5_000_000
    assert background.poll() == ["the disk did not answer within 5 ms"]
    background.begin("commit", lambda: 8, str, 9_000_000, who="it")
    assert background.poll() == []
    clock.now_ns = 14_000_000
    assert background.poll() == ["it did not answer within 9 ms"]
    background.begin("commit", lambda: 9, str, 9_000_000, who="it")
    hung.set()
    assert background.has_returned("commit", 60)
    found = background.poll()  # begins it
    assert background.has_returned("commit", 60) and found + background.poll() == [9]
