"""Place the instances of each stage on the workers.

Instance `i` of `n` goes to worker `⌊i·W/n⌋`: neighbours share a worker, so a worker serves one
contiguous range of virtual nodes, and the numbers of instances of two workers differ by at most
one. By this rule a stage of one instance would always be placed on worker 0; such stages are placed
on the workers in turn.

With `runtime.source_workers` the first workers run only sources (and operators fused to them), and
all other stages share the remaining workers. With one worker per host this separates hosts, too.

Instances with a resource request are placed on hosts that have the resources: on each host as many
as by the rule above, but no more than fit on its node; the others on hosts with resources left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ..configs.errors import ResourceError, SettingsError
from .requests import ClusterNode, ResourceRequest


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
        sources: for each stage whether it begins with a source; used only with `source_workers`.
        source_workers: the number of workers that run only sources; 0: none.

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


@dataclass(frozen=True)
class StageRequest:
    """The resource request of a stage.

    Attributes:
        operator_id: the head of the stage.
        stage: the number of the stage.
        request: the resources of each instance.
    """

    operator_id: str
    stage: int
    request: ResourceRequest


def fit_requests(
    placed: tuple[tuple[int, ...], ...],
    requests: Sequence[StageRequest],
    host_of_worker: Sequence[int],
    nodes: Sequence[ClusterNode],
    workers: Sequence[int],
) -> tuple[tuple[int, ...], ...]:
    """Move instances with a resource request to hosts whose nodes have these resources.

    Args:
        placed: the worker of every instance of every stage, as `place` returns it.
        requests: the requests of stages, in the order in which they are satisfied.
        host_of_worker: the host of each worker, ascending.
        nodes: the node of each host; hosts may share one.
        workers: the workers that may run the stages in `requests`.

    Raises:
        ResourceError: the nodes have fewer resources than the instances of a stage request.
    """
    left = {node.id: dict(node.resources) for node in nodes}
    result = list(placed)
    for stage in requests:
        wanted = Counter(host_of_worker[worker] for worker in placed[stage.stage])
        hosts = sorted({host_of_worker[worker] for worker in workers})
        shares = _share(stage, wanted, hosts, nodes, left)
        instances: list[int] = []
        for host in hosts:
            here = [worker for worker in workers if host_of_worker[worker] == host]
            kept = [worker for worker in placed[stage.stage] if worker in here]
            count = shares[host]
            spread = [here[i * len(here) // count] for i in range(count)]
            instances += kept if len(kept) == count else spread
        result[stage.stage] = tuple(instances)
    return tuple(result)


def _share(
    stage: StageRequest,
    wanted: Counter[int],
    hosts: Sequence[int],
    nodes: Sequence[ClusterNode],
    left: dict[str, dict[str, float]],
) -> Counter[int]:
    """Return how many instances each host gets, and subtract their resources from `left`."""
    shares: Counter[int] = Counter()
    rest = wanted.total()
    for limits in (wanted, Counter(dict.fromkeys(hosts, rest))):
        for host in hosts:
            node = left[nodes[host].id]
            more = min(limits[host] - shares[host], _instances_fitting(stage.request, node), rest)
            shares[host] += more
            rest -= more
            for name, amount in stage.request.amounts:
                node[name] = node.get(name, 0.0) - amount * more
    if rest:
        msg = (
            f"operator {stage.operator_id!r} asks Ray for {stage.request.describe()} for each of "
            f"{wanted.total()} instances, and the cluster has that for {shares.total()}: lower its "
            "parallelism, ask for less, or start Ray with more"
        )
        raise ResourceError(msg)
    return shares


def _instances_fitting(request: ResourceRequest, node: dict[str, float]) -> int:
    """Return how many instances a node has resources for."""
    counts = [
        int(node.get(name, 0.0) / amount + 1e-9) for name, amount in request.amounts if amount
    ]
    return min(counts, default=1 << 30)
