"""Place the instances of each stage on the workers.

Instance `i` of `n` goes to worker `⌊i·W/n⌋`: neighbours share a worker, so a worker serves one
contiguous range of virtual nodes, and no worker has more than one instance above another. A stage
of one instance would always land on worker 0 by this rule; such stages take the workers in turn.

With `runtime.source_workers` the first workers run sources (and what is fused to them) and nothing
else, and all other stages share the rest. With a worker per host, so are hosts.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..configs.errors import SettingsError


def place(
    parallelisms: Sequence[int],
    workers: int,
    sources: Sequence[bool] = (),
    source_workers: int = 0,
) -> tuple[tuple[int, ...], ...]:
    """Return the worker of every instance of every stage.

    Args:
        parallelisms: the number of instances of each stage.
        workers: the number of workers, at least 1.
        sources: of each stage, whether it begins with a source; matters with `source_workers`.
        source_workers: how many workers are for sources alone; 0: none.

    Raises:
        SettingsError: no worker would be left for the other stages.
    """
    if not source_workers:
        return _spread(parallelisms, 0, workers)
    if source_workers >= workers:
        msg = (
            f"runtime.source_workers={source_workers} leaves none of {workers} workers for what "
            f"follows the sources: use {source_workers + 1} workers or more"
        )
        raise SettingsError(msg)
    placed: list[tuple[int, ...]] = [()] * len(parallelisms)
    for apart, first, count in (
        (True, 0, source_workers),
        (False, source_workers, workers - source_workers),
    ):
        stages = [stage for stage, source in enumerate(sources) if source is apart]
        spread = _spread([parallelisms[stage] for stage in stages], first, count)
        for stage, instances in zip(stages, spread, strict=True):
            placed[stage] = instances
    return tuple(placed)


def _spread(parallelisms: Sequence[int], first: int, workers: int) -> tuple[tuple[int, ...], ...]:
    """Place stages on `workers` workers from number `first` on."""
    placed: list[tuple[int, ...]] = []
    singles = 0
    for parallelism in parallelisms:
        if parallelism == 1:
            placed.append((first + singles % workers,))
            singles += 1
        else:
            placed.append(tuple(first + i * workers // parallelism for i in range(parallelism)))
    return tuple(placed)
