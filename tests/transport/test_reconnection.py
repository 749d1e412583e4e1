"""When a broken link is dialled again, as a value."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whale_ray.transport.links.reconnection import LinkState, Reconnection

FIRST_NS, LONGEST_NS = 20, 1000


def test_dials_at_once_and_stays_up():
    link = Reconnection(5, FIRST_NS, LONGEST_NS)
    assert link.due(5)
    assert link.unreachable_since_ns == 5
    link.dialled()
    assert not link.due(1 << 60)
    link.up()
    assert (link.state, link.unreachable_since_ns, link.connections) == (LinkState.UP, None, 1)
    assert not link.due(1 << 60)


def test_waits_longer_after_each_failure_and_briefly_again_after_a_success():
    link = Reconnection(0, FIRST_NS, LONGEST_NS)
    waits = []
    for _ in range(8):
        link.dialled()
        link.failed(0, "refused", 0.5)
        waits.append(link.next_dial_ns)
        assert link.unreachable_since_ns == 0
    assert waits == [20, 40, 80, 160, 320, 640, 1000, 1000]
    link.dialled()
    link.up()
    link.failed(70, "silent", 0.0)
    assert (link.next_dial_ns, link.unreachable_since_ns) == (80, 70)
    assert link.failures == {"refused": 8, "silent": 1}
    assert not link.due(79)
    assert link.due(80)


def test_events_out_of_place():
    link = Reconnection(0, FIRST_NS, LONGEST_NS)
    with pytest.raises(ValueError, match="waits to be dialled cannot fail"):
        link.failed(0, "x", 0.5)
    with pytest.raises(ValueError, match="the link is waiting, not dialling"):
        link.up()
    link.dialled()
    with pytest.raises(ValueError, match="the link is dialling, not waiting"):
        link.dialled()


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 1, exclude_max=True)), max_size=100))
def test_every_wait_is_bounded(story):
    link, now_ns = Reconnection(0, FIRST_NS, LONGEST_NS), 0
    for comes_up, chance in story:
        assert link.due(now_ns)
        link.dialled()
        if comes_up:
            link.up()
        link.failed(now_ns, "cut", chance)
        assert FIRST_NS // 2 <= link.next_dial_ns - now_ns <= LONGEST_NS
        now_ns = link.next_dial_ns
    assert sum(link.failures.values()) == len(story)
