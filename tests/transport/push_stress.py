"""A sender and a receiver of a push channel, in processes of their own, killed at random moments.

A program: `python -m tests.transport.push_stress SEED ROUNDS` prints one JSON object, and ends with
an AssertionError and `replay: seed=… round=…` at the first fault. In every round

- a sender process sends numbered messages with checksums, of one to four slots, to a receiver;
- this process watches the slots that come back and, once they have passed a random number, kills
  with SIGKILL the sender, the receiver, both or nobody, and tells the survivor; as long as somebody
  is to be killed the stream goes on, so that every kill falls into the middle of it;
- a living receiver must have got every message, intact and in order, none lost and none twice: up
  to the last one, or up to the last one whose slots the killed sender had all written; a living
  sender must learn that nobody receives;
- no wake-up may be lost: where nobody dies, nobody sleeps but until it is rung for;
- nothing may be left: no process, no file descriptor, no segment.

The processes are those of ring_stress.py, which says more about them.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.transport.ring_stress import (
    Process,
    follow_orders,
    kill_all,
    number_of,
    numbers_until,
    play_rounds,
    send_all,
    sleep_ns,
    wait_for_position,
)
from whale_ray.transport.doorbell import DoorbellBoard
from whale_ray.transport.handles import BoardHandle
from whale_ray.transport.push.channel import (
    PushHandle,
    PushReceivingEnd,
    attach_push,
    create_push,
)
from whale_ray.transport.push.layout import DATA_OFFSET, RETURNED
from whale_ray.transport.segment import Segment, SegmentKind, sweep_stale

SLOTS, SLOT_BYTES = 8, 1024
CONTENT_BYTES_MAX = 3900
JOB = f"pushstress{os.getpid()}"
SENDER, RECEIVER = 0, 1


@dataclass(frozen=True)
class Round:
    """One round, drawn from its seed."""

    seed: str
    kind: SegmentKind
    messages: int
    poison: bool
    kills_sender: bool
    kills_receiver: bool
    kill_use: int

    @classmethod
    def draw(cls, seed: int, number: int) -> Round:
        chance = random.Random(f"{seed}/{number}")
        messages = chance.randint(100, 2000)
        return cls(
            seed=f"seed={seed} round={number}",
            kind=chance.choice(("memfd", "named")),
            messages=messages,
            poison=chance.random() < 0.3,
            kills_sender=chance.random() < 0.5,
            kills_receiver=chance.random() < 0.4,
            kill_use=chance.randint(0, 2 * messages),
        )

    @property
    def kills(self) -> bool:
        return self.kills_sender or self.kills_receiver


# The processes


def send(process: Process, plan: Round, handle: PushHandle, board: BoardHandle) -> dict[str, Any]:
    """Be the sender."""
    doorbells = DoorbellBoard.attach(board)
    mine = doorbells.doorbell(SENDER, spin_pauses=20)
    sender = attach_push(handle, doorbells.doorbell(RECEIVER))
    process.answer("attached")
    process.await_order()
    follow_orders(process, lambda _order: sender.peer_died(), mine)
    # A victim never sees the end; a sender whose receiver is killed finds the channel closed.
    numbers = numbers_until(lambda: not plan.kills, plan.messages)
    return send_all(
        sender, mine, random.Random(plan.seed), numbers, (50, 900, 3800),
        slack=50, timeout_ns=sleep_ns(plan.kills),
    )  # fmt: skip


def receive(process: Process, plan: Round, board: BoardHandle) -> dict[str, Any]:
    """Be the receiver: check every message, keep some views for a while and check them again."""
    doorbells = DoorbellBoard.attach(board)
    mine = doorbells.doorbell(RECEIVER, spin_pauses=20)
    receiver, handle = create_push(
        JOB, "slots", doorbells.doorbell(SENDER), slots=SLOTS, slot_bytes=SLOT_BYTES,
        kind=plan.kind, poison_released=plan.poison,
    )  # fmt: skip
    process.answer(handle)
    process.await_order()
    follow_orders(process, lambda _order: receiver.peer_died(), mine)
    chance = random.Random(f"{plan.seed} receiver")
    stored: deque[tuple[int, np.ndarray]] = deque(maxlen=SLOTS)
    received = end = 0

    def ready() -> bool:
        return receiver.available() or receiver.closed_by_peer

    while True:
        frame = receiver.get()
        if frame is None:
            if receiver.closed_by_peer:
                break
            stored.clear()
            mine.wait(sleep_ns(plan.kills), ready)
            continue
        number, end = number_of(frame.data), frame.end
        assert number == received, f"got message {number} instead of {received}"
        received += 1
        if chance.random() < 0.1:
            stored.append((number, frame.data[:]))
        receiver.release_buffer(frame)
        del frame
        _check_stored(receiver, stored, chance)
    stored.clear()
    receiver.available()
    receiver.close()
    return {"received": received, "end": end // SLOT_BYTES}


def _check_stored(
    receiver: PushReceivingEnd, stored: deque[tuple[int, np.ndarray]], chance: random.Random
) -> None:
    while stored and (receiver.statistics().held_bytes > 2048 or chance.random() < 0.2):
        number, view = stored.popleft()
        assert number_of(view) == number, f"stored message {number} has changed"
        del view
        receiver.available()


# The driver


def play(plan: Round, board: DoorbellBoard) -> dict[str, int]:
    """Play one round and check it; return what happened."""
    receiver = Process(lambda process: receive(process, plan, board.handle))
    handle = receiver.await_answer()
    assert isinstance(handle, PushHandle), handle
    watched = Segment.attach(handle.segment)
    sender = Process(lambda process: send(process, plan, handle, board.handle))
    assert sender.await_answer() == "attached"
    for process in (receiver, sender):
        process.order("go")
    if plan.kills:
        _kill_at_random(plan, watched, sender, receiver)
    got, sent = receiver.await_answer(), sender.await_answer()
    for process in (sender, receiver):
        process.end()
    _check(plan, got, sent)
    if got is not None:
        assert not message_at(watched, got["end"]), "a whole message was not received"
    watched.close()
    swept = sweep_stale(JOB)
    assert not (swept and (got is not None or plan.kind == "memfd"))
    counts = [answer[what] for answer, what in ((got, "received"), (sent, "sent")) if answer]
    return {
        "messages": max(counts, default=0),
        "senders_killed": int(sent is None),
        "receivers_killed": int(got is None),
    }


def _kill_at_random(plan: Round, watched: Segment, sender: Process, receiver: Process) -> None:
    """Kill the victims once as many slots as drawn have come back; tell the survivor."""
    wait_for_position(watched.words(RETURNED, RETURNED + 8), plan.kill_use)
    kill_all([sender] * plan.kills_sender + [receiver] * plan.kills_receiver)
    for survivor in (sender, receiver):
        survivor.order("the other side is dead")


def message_at(watched: Segment, use: int) -> bool:
    """Say whether a whole message starts at a use; written anew, after push/layout.py."""
    while True:
        slot_end = DATA_OFFSET + (use % SLOTS + 1) * SLOT_BYTES
        written, _extent, left, _last = watched.words(slot_end - 32, slot_end).tolist()
        if watched.buffer[slot_end - 1] != use // SLOTS % 255 + 1 or written != use:
            return False
        if left == 0:
            return True
        use += 1


def _check(plan: Round, got: dict[str, Any] | None, sent: dict[str, Any] | None) -> None:
    for answer in (got, sent):
        assert answer is None or "error" not in answer, answer["error"]
    assert (got is None) == plan.kills_receiver
    assert (sent is None) == plan.kills_sender
    if got is not None and sent is not None:
        assert got["received"] == sent["sent"] == plan.messages
    if sent is not None:
        assert sent["got_through"] == (got is not None)


if __name__ == "__main__":
    totals = play_rounds(*map(int, sys.argv[1:3]), JOB, 2, Round.draw, play)
    sys.stdout.write(json.dumps(totals) + "\n")
