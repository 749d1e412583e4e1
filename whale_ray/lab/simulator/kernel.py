"""The compiled pass over slices and hosts: when each host has each slice.

Every host serves slices in order. So the times of a slice follow from those of the slice before it,
of the same slice at the parent, and of the slice whose slot in the child's ring it takes; no event
queue is needed. A slice costs O(hosts); hosts are visited in the order in which they get it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ...transport.compiling import njit

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

# Indices in the array of costs.
(
    SERIALIZE,
    SEND,
    RECEIVE,
    PROCESS,
    TURN,
    WAKE,
    DELAY,
    OCCUPANCY,
    BURST,
    SETTLE,
    PRODUCE,
    WORKER_WAKE,
) = range(12)

# Rows of the hosts' state, each a time in seconds.
ARRIVAL, FREE, TURN_BEGAN, LINK_FREE, PROCESSED, HAS = range(6)
STATES = 6

# Rows of what is recorded for each slice.
ENTERED, SENT, RECEIVED, FINISHED, MEAN_RECEIVED, RECORDED = range(6)

# Sums over time.
SENDING_S, SENDS = range(2)


@njit(cache=True, nogil=True)
def forward(
    emitted: Floats,
    first: int,
    until_s: float,
    gap_s: float,
    order: Ints,
    child_from: Ints,
    children: Ints,
    fixed: Floats,
    per_weight: Floats,
    weights: Floats,
    hosts: Floats,
    released: Floats,
    record: Floats,
    sums: Floats,
) -> int:
    """Simulate slices from number `first` on, as long as they enter the queue by `until_s`.

    Args:
        emitted: scheduled moments, shape (slices,), ascending.
        first: number of the first slice to play.
        until_s: the pass ends before the first slice that enters later.
        gap_s: least time between two slices that enter the queue (throttling).
        order: all hosts, the source's (0) first, each after its parent.
        child_from: where each host's children begin in `children`.
        children: in the order in which each host sends to them.
        fixed: costs that do not depend on a slice's weight, in seconds; indices from SERIALIZE on.
        per_weight: the rest, for a slice of weight 1.
        weights: of each slice; empty if all are 1.
        hosts: shape (STATES, hosts), changed.
        released: shape (ring slots, hosts), changed: when each slot was last released.
        record: shape (RECORDED, slices), changed.
        sums: changed: SENDING_S, time that the source spent on sending; SENDS, number of sends.

    Returns the number of the first slice that was not simulated.
    """
    for k in range(first, emitted.shape[0]):
        weight = weights[k] if weights.size > 0 else 1.0
        room = released[k % released.shape[0]]
        enters = max(emitted[k], room[0])
        last = record[ENTERED, k - 1] if k > 0 else -1.0
        enters = max(enters, last + gap_s)
        if emitted[k] > last:
            enters += fixed[WORKER_WAKE]
        enters += fixed[PRODUCE] + weight * per_weight[PRODUCE]
        if enters > until_s:
            return k
        record[ENTERED, k] = enters
        hosts[ARRIVAL, 0] = enters
        spread(
            order, child_from, children, fixed, per_weight, weight, hosts, room, record[:, k], sums
        )
        record[SENT, k] = hosts[FREE, 0]
    return int(emitted.shape[0])


@njit(cache=True, nogil=True)
def spread(
    order: Ints,
    child_from: Ints,
    children: Ints,
    fixed: Floats,
    per_weight: Floats,
    weight: float,
    hosts: Floats,
    room: Floats,
    record: Floats,
    sums: Floats,
) -> None:
    """Pass one slice from host to host; `room` and `record` are the slice's, the rest as above."""
    send = fixed[SEND] + weight * per_weight[SEND]
    process = fixed[PROCESS] + weight * per_weight[PROCESS]
    occupancy = fixed[OCCUPANCY] + weight * per_weight[OCCUPANCY]
    own = fixed[SERIALIZE] + weight * per_weight[SERIALIZE]  # the source is the first host
    receive = fixed[RECEIVE] + weight * per_weight[RECEIVE]
    arrival, free, turn_began = hosts[ARRIVAL], hosts[FREE], hosts[TURN_BEGAN]
    link_free, processed = hosts[LINK_FREE], hosts[PROCESSED]
    record[RECEIVED], record[FINISHED], total = 0.0, 0.0, 0.0
    for v in order:
        came = arrival[v]
        now = max(came, free[v])
        per_child = send
        if came > turn_began[v]:  # it arrived after the last turn began
            turn_began[v] = now
            per_child += fixed[TURN]
        was_idle = came > free[v]
        now += own + (fixed[WAKE] if was_idle else 0.0)
        own = receive
        hosts[HAS, v] = end = now
        if v > 0:
            total += now
            record[RECEIVED] = max(record[RECEIVED], now)
            worker_wake = fixed[WORKER_WAKE] if now > processed[v] else 0.0
            processed[v] = end = max(now, processed[v]) + worker_wake + process
            record[FINISHED] = max(record[FINISHED], end)
        for child in children[child_from[v] : child_from[v + 1]]:
            begin = max(now, room[child])  # the child's ring has no room before
            now = begin + per_child
            if occupancy > 0.0:
                link_free[v] = max(link_free[v], begin) + occupancy
                now = max(now, link_free[v] - fixed[BURST])
            if v == 0:
                sums[SENDING_S] += now - begin
                sums[SENDS] += 1.0
            arrival[child] = now + fixed[DELAY]
        free[v] = now + (fixed[SETTLE] if was_idle else 0.0)
        # The parent learns of it after the network delay; the source's ring is local.
        room[v] = max(free[v], end) + (fixed[DELAY] if v > 0 else 0.0)
    record[MEAN_RECEIVED] = total / (order.shape[0] - 1)


@njit(cache=True, nogil=True)
def plan_unsized(
    parents: Ints, ranks: Ints, hosts: int, order: Ints, child_from: Ints, children: Ints
) -> None:
    """Write a tree into the arrays that `forward` takes.

    `parents[v]` is the parent of host v (not of host 0); `ranks` has all hosts but 0, siblings in
    sending order.
    """
    child_from[:] = 0
    for child in ranks:
        child_from[parents[child] + 2] += 1
    for v in range(hosts):
        child_from[v + 2] += child_from[v + 1]
    # While the array is filled, `child_from[v + 1]` is the end of host v's children so far.
    for child in ranks:
        parent = parents[child]
        children[child_from[parent + 1]] = child
        child_from[parent + 1] += 1
    order[0] = 0
    count = 1
    for place in range(hosts):
        v = order[place]
        for at in range(child_from[v], child_from[v + 1]):
            order[count] = children[at]
            count += 1


def as_array(costs: Any) -> Floats:
    """Return SliceCosts as the array that `forward` takes."""
    return np.array(
        [
            costs.serialize_s,
            costs.send_s,
            costs.receive_s,
            costs.process_s,
            costs.turn_s,
            costs.wake_s,
            costs.delay_s,
            costs.occupancy_s,
            costs.burst_s,
            costs.settle_s,
            costs.produce_s,
            costs.worker_wake_s,
        ]
    )
