"""The loops of an as-of join, compiled.

Rows are numbered, and each has an *owner*: the record of its key, or NONE once nothing more can
come of it. A key's `latest` is its newest right row, `waiting` its newest left row without an
answer, from which `following` leads to the older ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...state.watermarks import LATEST_NS
from ...transport.compiling import njit

__all__ = ["NONE", "answer_expired", "forget_before", "match_rows"]

NONE = -1
"""In the place of a row or an owner: there is none."""


@njit(inline="always")
def _apart(later: Any, earlier: Any) -> Any:
    """Return the distance of two times, which may exceed int64."""
    return np.uint64(later) - np.uint64(earlier)


@njit(inline="always")
def _later_by(time: Any, tolerance: Any) -> Any:
    """Return the time a tolerance later, or the latest there is."""
    if _apart(LATEST_NS, time) <= tolerance:
        return np.int64(LATEST_NS)
    return np.int64(np.uint64(time) + tolerance)


@njit(inline="always")
def _latest_within(latest: Any, key: Any, right_times: Any, time: Any, tolerance: Any) -> Any:
    """Return a key's latest right row if it lies within the tolerance of a time, else NONE."""
    row = latest[key]
    if row == NONE or _apart(time, right_times[row]) > tolerance:
        return np.int64(NONE)
    return row


@njit(cache=True, nogil=True)
def _answer_waiting(
    row: Any,
    key: Any,
    left_times: Any,
    left_owners: Any,
    following: Any,
    right_times: Any,
    latest: Any,
    waiting: Any,
    tolerance: Any,
    looks_back: bool,
    answers: Any,
    count: Any,
) -> Any:
    """Answer the left rows of a key that wait, since a right row has come after them."""
    time = right_times[row]
    here = waiting[key]
    waiting[key] = NONE
    while here != NONE and left_owners[here] != NONE:  # older ones have been answered
        asked = left_times[here]
        ahead = _apart(time, asked)
        best, answered = np.int64(row), time
        if ahead > tolerance:
            best, answered = np.int64(NONE), _later_by(asked, tolerance)
        if looks_back:
            before = _latest_within(latest, key, right_times, asked, tolerance)
            if before != NONE and _apart(asked, right_times[before]) < ahead:
                best = before
        answers[count, 0], answers[count, 1], answers[count, 2] = here, best, answered
        count += 1
        left_owners[here] = NONE
        here = following[here]
    return count


@njit(cache=True, nogil=True)
def _keep_latest(row: Any, key: Any, right_times: Any, right_owners: Any, latest: Any) -> None:
    """Let a right row replace the latest one of its key, unless that has the same time."""
    before = latest[key]
    if before != NONE and right_times[before] == right_times[row]:
        right_owners[row] = NONE
        return
    if before != NONE:
        right_owners[before] = NONE
    latest[key] = row


@njit(cache=True, nogil=True)
def _take_left(
    row: Any,
    left_times: Any,
    left_owners: Any,
    following: Any,
    right_times: Any,
    latest: Any,
    waiting: Any,
    tolerance: Any,
    looks_back: bool,
    looks_ahead: bool,
    answers: Any,
    count: Any,
) -> Any:
    """Answer a left row, or let it wait for a right row after it."""
    key, time = left_owners[row], left_times[row]
    best = np.int64(NONE)
    if looks_back and key != NONE:
        best = _latest_within(latest, key, right_times, time, tolerance)
    if looks_ahead and key != NONE and (best == NONE or right_times[best] != time):
        following[row] = waiting[key]
        waiting[key] = row
        return count
    answers[count, 0], answers[count, 1], answers[count, 2] = row, best, time
    left_owners[row] = NONE
    return count + 1


@njit(cache=True, nogil=True)
def match_rows(
    first_left: int,
    stop_left: int,
    first_right: int,
    stop_right: int,
    left_times: Any,
    left_owners: Any,
    following: Any,
    right_times: Any,
    right_owners: Any,
    latest: Any,
    waiting: Any,
    tolerance: Any,
    looks_back: bool,
    looks_ahead: bool,
    right_comes_first: bool,
    answers: Any,
) -> int:
    """Take the new rows of both sides in the order of their times; answer left rows.

    Of right rows of the same time the last one counts, but for a join that only looks ahead the
    first. Rows without an owner have a null key: left ones are answered by NONE.

    Args:
        first_left, stop_left, first_right, stop_right: the numbers of the new rows, which are
            sorted by time, and are not earlier than those before them.
        left_times, left_owners, following, right_times, right_owners: of rows, by number.
        latest, waiting: of keys, by record.
        tolerance: the greatest distance of two rows, ns, uint64.
        answers: int64 (n, 3): receives left row, right row or NONE, and event time of the answer.
            n is at least the number of left rows that wait and of new ones.

    Returns:
        the number of answers.
    """
    count, left, right = 0, first_left, first_right
    while left < stop_left or right < stop_right:
        takes_right = right < stop_right and (
            left == stop_left
            or right_times[right] < left_times[left]
            or (right_comes_first and right_times[right] == left_times[left])
        )
        if not takes_right:
            count = _take_left(
                *(left, left_times, left_owners, following, right_times, latest, waiting),
                *(tolerance, looks_back, looks_ahead, answers, count),
            )
            left += 1
            continue
        stop = right
        while stop < stop_right and right_times[stop] == right_times[right]:
            stop += 1
        for number in range(stop - right):
            row = stop - 1 - number if looks_back else right + number
            key = right_owners[row]
            if key == NONE:
                continue
            if looks_ahead:
                count = _answer_waiting(
                    *(row, key, left_times, left_owners, following, right_times),
                    *(latest, waiting, tolerance, looks_back, answers, count),
                )
            if looks_back:
                _keep_latest(row, key, right_times, right_owners, latest)
            else:
                right_owners[row] = NONE
        right = stop
    return count


@njit(cache=True, nogil=True)
def answer_expired(
    first: int,
    stop: int,
    until: int,
    earliest: int,
    left_times: Any,
    left_owners: Any,
    right_times: Any,
    latest: Any,
    waiting: Any,
    tolerance: Any,
    ends: bool,
    answers: Any,
) -> tuple[int, int]:
    """Answer left rows whose tolerance has passed, by the latest right row before them if any.

    Args:
        first, stop: the rows that may wait.
        until: the watermark.
        earliest: the least event time of an answer.
        ends: whether all rows are to be answered, since no right row follows.
        left_times, left_owners, right_times, latest, waiting, tolerance, answers: as for
            `match_rows`.

    Returns:
        the first row that still may wait, and the number of answers.
    """
    count = 0
    for row in range(first, stop):
        key, time = left_owners[row], left_times[row]
        if key == NONE:
            continue
        expires = _later_by(time, tolerance)
        if not ends and expires > until:
            return row, count
        answers[count, 0] = row
        answers[count, 1] = _latest_within(latest, key, right_times, time, tolerance)
        answers[count, 2] = expires if expires < LATEST_NS else max(time, earliest)
        count += 1
        left_owners[row] = NONE
        if waiting[key] == row:
            waiting[key] = NONE
    return stop, count


@njit(cache=True, nogil=True)
def forget_before(
    first: int, stop: int, horizon: int, right_times: Any, right_owners: Any, latest: Any
) -> int:
    """Let right rows before a horizon have no owner; return the first row that is not before."""
    for row in range(first, stop):
        if right_times[row] >= horizon:
            return row
        if right_owners[row] != NONE:
            latest[right_owners[row]] = NONE
            right_owners[row] = NONE
    return stop
