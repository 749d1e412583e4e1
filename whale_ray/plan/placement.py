"""Place the instances of each stage on the workers.

Instance `i` of `n` goes to worker `⌊i·W/n⌋`: neighbours share a worker, so a worker serves one
contiguous range of virtual nodes, and no worker has more than one instance above another. A stage
of one instance would always land on worker 0 by this rule; such stages take the workers in turn.
"""

from __future__ import annotations

from collections.abc import Sequence


def place(parallelisms: Sequence[int], workers: int) -> tuple[tuple[int, ...], ...]:
    """Return the worker of every instance of every stage.

    Args:
        parallelisms: the number of instances of each stage.
        workers: the number of workers, at least 1.
    """
    placed: list[tuple[int, ...]] = []
    singles = 0
    for parallelism in parallelisms:
        if parallelism == 1:
            placed.append((singles % workers,))
            singles += 1
        else:
            placed.append(tuple(i * workers // parallelism for i in range(parallelism)))
    return tuple(placed)
