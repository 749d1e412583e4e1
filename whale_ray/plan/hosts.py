"""The logical host of each worker, and the tree along which a stream reaches other hosts.

A *stream* is a ring of the plan. On the host of its producer, workers read that ring in place;
every other host with readers of it has a mirror of the ring, which its relay fills. The bytes
travel from host to host along the stream's *route*, a tree whose root is the producer's host.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..configs.errors import SettingsError
from ..multicast.out_degree import binomial_degree
from ..multicast.trees import Route, Tree, binomial_tree, chain, non_blocking_tree, star


@dataclass(frozen=True)
class HostLayout:
    """The logical hosts of a job; a single host has no relay."""

    of_worker: tuple[int, ...]
    """The host of each worker, ascending."""
    route: Route
    """The initial shape of every stream's tree of hosts."""
    degree: int = 0
    """The out-degree of a non-blocking tree; 0: that of a binomial tree until the load is known."""

    @property
    def count(self) -> int:
        """How many hosts there are."""
        return self.of_worker[-1] + 1

    @property
    def names(self) -> tuple[str, ...]:
        """The unique names of the hosts, by number."""
        return tuple(host_name(host) for host in range(self.count))

    def workers_on(self, host: int) -> tuple[int, ...]:
        """Return the workers of a host, ascending."""
        return tuple(worker for worker, of in enumerate(self.of_worker) if of == host)

    def hosts_of(self, workers: Iterable[int]) -> tuple[int, ...]:
        """Return the hosts of some workers, ascending."""
        return tuple(sorted({self.of_worker[worker] for worker in workers}))

    def tree(self, root: int, readers: Iterable[int]) -> Tree:
        """Return the initial tree along which a stream of host `root` reaches the hosts `readers`.

        Hosts join it in ascending order, beginning after the root and wrapping around.
        """
        remote = sorted((host for host in readers if host != root), key=lambda host: host < root)
        return shape_tree(self.route, self.degree, root, tuple(remote))


@functools.lru_cache(maxsize=4096)
def shape_tree(route: Route, degree: int, root: int, remote: tuple[int, ...]) -> Tree:
    """Return a tree of the given shape.

    Args:
        route: the shape.
        degree: the out-degree of a non-blocking tree; 0: that of a binomial tree.
        root: the host at which the stream begins.
        remote: the other hosts, in the order in which they join.
    """
    if route == "star":
        return star(root, remote)
    if route == "chain":
        return chain(root, remote)
    if route == "binomial":
        return binomial_tree(root, remote)
    return non_blocking_tree(root, remote, degree or binomial_degree(len(remote)))


def host_name(host: int) -> str:
    """Return the name of a logical host."""
    return f"host-{host}"


def assign_hosts(
    hosts: int, workers: int, route: Route, weights: Sequence[int] = (), degree: int = 0
) -> HostLayout:
    """Assign workers to hosts in contiguous blocks, at least one to each host.

    Args:
        hosts: the number of hosts; 0 means a single one.
        workers: the number of workers.
        route: the initial shape of every stream's tree.
        weights: the weight of each host, such as its processors; by default all are equal. No host
            gets more workers than its weight as long as the weights suffice.
        degree: see `HostLayout.degree`.

    Raises:
        SettingsError: there are more hosts than workers.
    """
    count = hosts or 1
    if count > workers:
        msg = (
            f"runtime.hosts={count}, but there are only {workers} workers: use --workers {count} "
            "or more, or fewer hosts"
        )
        raise SettingsError(msg)
    shares = _share_out(workers, tuple(weights) or (1,) * count)
    return HostLayout(tuple(host for host, n in enumerate(shares) for _ in range(n)), route, degree)


def _share_out(workers: int, weights: Sequence[int]) -> list[int]:
    """Return the workers of each host by the largest-remainder method.

    A host whose quota is less than one worker gets one before the others share the rest.
    """
    if not any(weights):  # all weights are 0: share evenly
        weights = [1] * len(weights)
    shares = [1] * len(weights)
    rest, heavy = workers, list(range(len(weights)))
    while True:
        total = sum(weights[host] for host in heavy)
        light = [host for host in heavy if rest * weights[host] < total]
        if not light:
            break
        rest -= len(light)
        heavy = [host for host in heavy if host not in light]
    quotas = {host: divmod(rest * weights[host], total) for host in heavy}
    for host, (whole, _) in quotas.items():
        shares[host] = whole
    left = rest - sum(whole for whole, _ in quotas.values())
    for host in sorted(heavy, key=lambda host: -quotas[host][1])[:left]:
        shares[host] += 1
    return shares
