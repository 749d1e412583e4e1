"""Other systems (`make peers`), measured in the same run with the same tuples and reading."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from ....configs.errors import WhaleError
from ..peers import NOT_INSTALLED, PeerResult, PeerSystem, all_peers
from ..report import Aim, BenchRow
from .deployment import Shape
from .measuring import ModeResult, Plan, find, log_progress

__all__ = ["PeerFound", "compared", "peer_rows"]

_FEW: Final = 8
"""Instances on one host with a process each."""


@dataclass(frozen=True)
class PeerFound:
    """The result of a peer with so many instances and `batch` tuples per message."""

    name: str
    instances: int
    batch: int
    result: PeerResult


@dataclass(frozen=True)
class _Wanted:
    """An aim: the factor over a peer's rate that one of this project's modes should reach.

    Attributes:
        peers: their names; the fastest of them counts.
        few: whether the aim is for few instances.
        modes: this project's modes; the fastest of them counts.
        limit: how many times.
        batch: tuples in a message of the peer; 0: the number that suits it best.
    """

    peers: tuple[str, ...]
    few: bool
    modes: tuple[str, ...]
    limit: float
    batch: int = 0


_BEST: Final = ("star", "one host")
_WANTED: Final = (
    _Wanted(("flink",), few=False, modes=_BEST, limit=50.0),
    _Wanted(("zeromq-push", "zeromq-publish"), few=False, modes=_BEST, limit=50.0, batch=100),
    _Wanted(("openmpi", "openmpi-untouched"), few=True, modes=("one host",), limit=0.9),
    # The baseline of all other comparisons must not be slow by itself.
    _Wanted(("zeromq-fan-out",), few=False, modes=("instances, tcp",), limit=0.8),
    _Wanted(("zeromq-fan-out",), few=True, modes=("instances, one host",), limit=0.8),
)


def peer_rows(
    found: Sequence[ModeResult], shape: Shape, plan: Plan, seconds: float
) -> tuple[list[BenchRow], list[str]]:
    """Measure every installed peer, and this project's modes where `found` lacks them.

    Returns the rows, and a note for each peer that is missing or failed.
    """
    few = Shape(_FEW, _FEW)
    wanted = {
        size: {mode for want in _WANTED if want.few is (size == few) for mode in want.modes}
        for size in (shape, few)
    }
    ours: list[ModeResult] = []
    unpaced = Plan(plan.warm_up_s, plan.unpaced_s, 0.0)
    for size, names in wanted.items():
        known = [one for one in found if one.shape == size and one.mode.name in names]
        missing = sorted(names - {one.mode.name for one in known})
        ours += [*known, *find(size, unpaced, missing)]
    peers: list[PeerFound] = []
    notes: list[str] = []
    for peer in all_peers():
        measured, failed = _measure(peer, (shape.instances, few.instances), seconds)
        peers += measured
        notes += failed
    rows = [_our_row(one) for one in ours] + [_peer_row(one) for one in peers]
    return [*rows, *compared(ours, peers, few)], notes


def _measure(
    peer: PeerSystem, sizes: Sequence[int], seconds: float
) -> tuple[list[PeerFound], list[str]]:
    found: list[PeerFound] = []
    failed: list[str] = []
    for instances in sizes:
        for batch in peer.batches:
            if instances > peer.instances_max:
                continue
            log_progress(f"{instances} instances, {peer.name}, {batch:,} tuples a message")
            try:
                result = peer.measure(instances, seconds, batch)
            except WhaleError as error:
                failed.append(str(error))
                if NOT_INSTALLED in str(error):
                    return found, failed
                continue
            found.append(PeerFound(peer.name, instances, batch, result))
    return found, failed


def compared(
    ours: Sequence[ModeResult], peers: Sequence[PeerFound], few: Shape
) -> Iterator[BenchRow]:
    """Return the aims for which both sides were measured."""
    for want in _WANTED:
        mine = [one for one in ours if (one.shape == few) is want.few]
        mine = [one for one in mine if one.mode.name in want.modes]
        theirs = [
            one
            for one in peers
            if one.name in want.peers
            and (one.instances == few.instances) is want.few
            and want.batch in {0, one.batch}
            and one.result.tuples_per_s
        ]
        if not mine or not theirs:
            continue
        best = max(mine, key=lambda one: one.unpaced.rows_per_s)
        peer = max(theirs, key=lambda one: one.result.tuples_per_s)
        also = {}
        if peer.result.cpu_ns_per_tuple:
            total_ns = best.unpaced.per_row_ns(best.unpaced.spent.total_ns)
            also["x less CPU in all"] = peer.result.cpu_ns_per_tuple / max(total_ns, 1e-9)
        yield BenchRow(
            "aim: tuples/s against a peer",
            {"instances": best.shape.instances, "mode": best.mode.name, "batch": peer.batch},
            best.unpaced.rows_per_s / peer.result.tuples_per_s,
            f"x of {peer.name}",
            aim=Aim("value", "at least", want.limit),
            also=also,
        )


def _our_row(found: ModeResult) -> BenchRow:
    measured = found.unpaced
    return BenchRow(
        "against peers",
        {"instances": found.shape.instances, "of": f"whale-ray, {found.mode.name}"},
        measured.rows_per_s,
        "tuples/s",
        cores=measured.spent.total_ns / measured.seconds / 1e9,
        also={
            "all ns/tuple": measured.per_row_ns(measured.spent.total_ns),
            "source ns/tuple": measured.per_row_ns(measured.spent.source_ns),
        },
    )


def _peer_row(found: PeerFound) -> BenchRow:
    also = {}
    if found.result.cpu_ns_per_tuple is not None:
        also["all ns/tuple"] = found.result.cpu_ns_per_tuple
    if found.result.source_cpu_ns_per_tuple is not None:
        also["source ns/tuple"] = found.result.source_cpu_ns_per_tuple
    return BenchRow(
        "against peers",
        {"instances": found.instances, "of": found.name, "batch": found.batch},
        found.result.tuples_per_s,
        "tuples/s",
        also=also,
    )
