"""Doorbells wake whoever sleeps, lose no ring, and cost nothing while their owner is awake."""

from __future__ import annotations

import pickle
import threading

import pytest

from whale_ray.transport.doorbell import (
    LAST_WATERMARK_NS,
    NO_WATERMARK_NS,
    Doorbell,
    DoorbellBoard,
)

FOREVER_NS = 60_000_000_000
"""Longer than any test may take: whoever sleeps so long was not woken."""


def never() -> bool:
    return False


def spinning(spin_pauses: int) -> Doorbell:
    return DoorbellBoard.create(1, 0, "private", kind="private").doorbell(0, spin_pauses)


def is_sleeping(doorbell: Doorbell) -> bool:
    return bool(doorbell._words[1])


def test_no_sleep_while_there_is_work():
    doorbell = spinning(50)
    assert doorbell.wait(FOREVER_NS, lambda: True)
    assert not is_sleeping(doorbell)


def test_work_that_comes_during_the_spin_ends_it():
    answers = iter([False, True])
    assert spinning(50).wait(FOREVER_NS, lambda: next(answers))


def test_work_that_comes_before_the_sleep_prevents_it():
    answers = iter([False, False, True])
    doorbell = spinning(50)
    assert doorbell.wait(FOREVER_NS, lambda: next(answers))
    assert not is_sleeping(doorbell)
    assert Doorbell.private().wait(FOREVER_NS, lambda: True)


def test_a_ring_between_the_last_look_and_the_sleep_is_not_lost():
    doorbell = Doorbell.private()
    looks = []

    def ready() -> bool:
        looks.append(is_sleeping(doorbell))
        doorbell.ring()
        return False

    assert doorbell.wait(FOREVER_NS, ready)
    assert looks == [True], "who does not spin looks once, after the announcement"


def test_the_time_is_up():
    doorbell = Doorbell.private()
    assert not doorbell.wait(1000, never)
    assert not is_sleeping(doorbell)


@pytest.mark.parametrize("spin_pauses", [0, 50])
def test_a_ring_during_the_turn_ends_the_rest(spin_pauses):
    doorbell = spinning(spin_pauses)
    turns = []

    def turn() -> int:
        turns.append(is_sleeping(doorbell))
        doorbell.ring()
        return FOREVER_NS

    doorbell.rest(turn)
    assert turns == [True], "the sleep is announced before the turn"
    assert not is_sleeping(doorbell)


def test_no_rest_while_the_turn_leaves_something_undone():
    doorbell = Doorbell.private()
    doorbell.rest(lambda: 0)
    doorbell.rest(lambda: 1000)
    assert not is_sleeping(doorbell)
    with pytest.raises(ZeroDivisionError):
        doorbell.rest(lambda: 1 // 0)
    assert not is_sleeping(doorbell)


def test_an_awake_owner_is_not_rung():
    doorbell = Doorbell.private()
    doorbell.ring()
    assert doorbell._words.tolist() == [0] * 16
    assert not doorbell.wait(1000, never), "an earlier ring does not count"


def test_a_failing_check_leaves_no_sleep_announced():
    doorbell = Doorbell.private()

    def ready() -> bool:
        if is_sleeping(doorbell):
            raise ZeroDivisionError
        return False

    with pytest.raises(ZeroDivisionError):
        doorbell.wait(FOREVER_NS, ready)
    assert not is_sleeping(doorbell)


def test_a_sleeper_is_woken_through_another_mapping():
    owner = DoorbellBoard.create(3, 0, "test")
    other = DoorbellBoard.attach(pickle.loads(pickle.dumps(owner.handle)))
    mine, neighbour = owner.doorbell(1), other.doorbell(2)
    answers = []
    sleeper = threading.Thread(target=lambda: answers.append(mine.wait(FOREVER_NS, never)))
    sleeper.start()
    while not is_sleeping(mine):
        pass
    neighbour.ring()
    assert is_sleeping(mine)
    other.doorbell(1).ring()
    sleeper.join()
    assert answers == [True]
    other.close()
    owner.close()


def test_two_threads_hand_over_in_turns():
    """Each step needs a wake-up of the other side: a lost one would stop the test."""
    first, second = Doorbell.private(), spinning(20)
    turn = [0]
    rounds = 2000

    def play(parity: int, mine: Doorbell, theirs: Doorbell) -> None:
        while turn[0] < rounds:
            assert mine.wait(FOREVER_NS, lambda: turn[0] % 2 == parity or turn[0] >= rounds)
            if turn[0] % 2 == parity and turn[0] < rounds:
                turn[0] += 1
            theirs.ring()

    threads = [
        threading.Thread(target=play, args=(0, first, second)),
        threading.Thread(target=play, args=(1, second, first)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert turn == [rounds]


def test_a_doorbell_outlives_its_board():
    board = DoorbellBoard.create(1, 1, "test")
    doorbell = board.doorbell(0)
    board.close()
    board.close()
    doorbell.ring()
    board.set_watermark(0, 5)
    assert board.watermark(0) == 5


def test_watermarks():
    owner = DoorbellBoard.create(2, 3, "test")
    other = DoorbellBoard.attach(owner.handle)
    assert [other.watermark(slot) for slot in range(3)] == [NO_WATERMARK_NS] * 3
    assert other.min_watermark() == NO_WATERMARK_NS
    for slot, watermark_ns in enumerate((30, -20, LAST_WATERMARK_NS)):
        owner.set_watermark(slot, watermark_ns)
    assert [other.watermark(slot) for slot in range(3)] == [30, -20, LAST_WATERMARK_NS]
    assert other.min_watermark() == -20
    other.close()
    owner.close()


def test_a_board_without_sources_waits_for_none():
    board = DoorbellBoard.create(1, 0, "test", kind="private")
    assert board.min_watermark() == LAST_WATERMARK_NS
    board.close()


def test_an_unknown_doorbell_is_refused():
    board = DoorbellBoard.create(2, 1, "test", kind="private")
    with pytest.raises(IndexError, match="worker 2 is not on the board, which has 2"):
        board.doorbell(2)
    with pytest.raises(IndexError, match="watermark slot -1 is not on the board, which has 1"):
        board.watermark(-1)
    board.close()
