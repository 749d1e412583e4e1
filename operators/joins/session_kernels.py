"""The loops of a join within sessions, compiled.

The rows of one side of a session are a chain: the session holds the newest one, `heads`, and each
row the next, `following`. A row's *owner* is its session.
"""

from __future__ import annotations

from typing import Any

from ...transport.compiling import njit
from .asof_kernels import NONE

__all__ = ["disown_rows", "link_rows", "list_rows", "move_rows", "pair_rows"]


@njit(cache=True, nogil=True)
def link_rows(first: int, stop: int, owners: Any, following: Any, heads: Any) -> None:
    """Add rows to the chains of their owners."""
    for row in range(first, stop):
        following[row] = heads[owners[row]]
        heads[owners[row]] = row


@njit(cache=True, nogil=True)
def move_rows(merges: Any, owners: Any, following: Any, heads: Any) -> None:
    """Let all rows of the second session of each pair belong to the first."""
    for number in range(len(merges)):
        into, gone = merges[number, 0], merges[number, 1]
        row, last = heads[gone], NONE
        while row != NONE:
            owners[row] = into
            row, last = following[row], row
        if last != NONE:
            following[last] = heads[into]
            heads[into] = heads[gone]
            heads[gone] = NONE


@njit(cache=True, nogil=True)
def disown_rows(sessions: Any, owners: Any, following: Any, heads: Any) -> None:
    """Let the rows of sessions have no owner, and the sessions no rows."""
    for session in sessions:
        row = heads[session]
        while row != NONE:
            owners[row] = NONE
            row = following[row]
        heads[session] = NONE


@njit(cache=True, nogil=True)
def list_rows(sessions: Any, following: Any, heads: Any, at: Any, rows: Any, numbers: Any) -> int:
    """Write the rows of sessions, and which of the sessions each is in.

    Args:
        sessions: int64 (n,).
        following, heads: the chains of their rows.
        at: int64 (2,): where to begin, and after the call where to continue: the number of a
            session, and a row; NONE for the first one of that session.
        rows, numbers: int64 (m,), receive the rows and the number of their session.

    Returns:
        the number of rows; if it is m, there may be more.
    """
    count, row = 0, at[1]
    for number in range(at[0], len(sessions)):
        if row == NONE:
            row = heads[sessions[number]]
        while row != NONE:
            if count == len(rows):
                at[0], at[1] = number, row
                return count
            rows[count], numbers[count] = row, number
            count += 1
            row = following[row]
    at[0] = len(sessions)
    return count


@njit(cache=True, nogil=True)
def pair_rows(
    sessions: Any,
    left_following: Any,
    left_heads: Any,
    right_following: Any,
    right_heads: Any,
    at: Any,
    lefts: Any,
    rights: Any,
    numbers: Any,
) -> int:
    """Pair the left with the right rows of each session.

    Args:
        sessions: int64 (n,).
        left_following, left_heads, right_following, right_heads: the chains of both sides.
        at: int64 (3,): where to begin, and after the call where to continue: the number of a
            session, a left and a right row; NONE for the first of that session or left row.
        lefts, rights, numbers: int64 (m,), receive the rows and the number of their session.

    Returns:
        the number of pairs; if it is m, there may be more.
    """
    count = 0
    left, right = at[1], at[2]
    for number in range(at[0], len(sessions)):
        session = sessions[number]
        if left == NONE:
            left = left_heads[session]
        while left != NONE:
            if right == NONE:
                right = right_heads[session]
            while right != NONE:
                if count == len(lefts):
                    at[0], at[1], at[2] = number, left, right
                    return count
                lefts[count], rights[count], numbers[count] = left, right, number
                count += 1
                right = right_following[right]
            left = left_following[left]
    at[0] = len(sessions)
    return count
