"""The gain of each step by itself: from a pickle per instance and row to slices over a tree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from ..report import BenchRow
from .deployment import Shape
from .measuring import ModeResult, Plan, find
from .modes import INSTANCES_TCP, PICKLED

__all__ = ["step_rows"]

_UNSLICED: Final[Mapping[str, object]] = {
    "transport.mms_bytes": 1024,
    "transport.wtl_ms": 0.0,
    "runtime.source_batch_rows": 1,
}
"""Each row is sent at once, without slicing."""

STEPS: Final = (
    ("encoding: columns, not pickled tuples", PICKLED, INSTANCES_TCP),
    ("slicing: many rows a message, not one", "unsliced", INSTANCES_TCP),
    ("worker-oriented: once per host, not per instance", INSTANCES_TCP, "star"),
    ("tree: as many copies as fit the load, not one per host", "star", "non-blocking"),
    ("transport: shared memory, not tcp", "star", "one host"),
)
"""What changes, and between which modes."""


def step_rows(found: Sequence[ModeResult], shape: Shape, plan: Plan) -> Iterator[BenchRow]:
    """Return the gain of each step at one size; measures the modes that `found` lacks.

    The gain in throughput is that of two cores that stand for all hosts; the gain in processor time
    of the source's host is what the source would gain if every host had its own cores.
    """
    here = {one.mode.name: one for one in found if one.shape == shape}
    names = {name for _, *modes in STEPS for name in modes} - {"unsliced"}
    unpaced = Plan(plan.warm_up_s, plan.unpaced_s, 0.0)
    missing = [name for name in names if name not in here]
    here |= {one.mode.name: one for one in find(shape, unpaced, missing)}
    here["unsliced"] = find(shape, unpaced, [INSTANCES_TCP], _UNSLICED)[0]
    for what, before, after in STEPS:
        yield _gain(what, here[before], here[after], (before, after))


def _gain(what: str, before: ModeResult, after: ModeResult, names: tuple[str, str]) -> BenchRow:
    source = [one.unpaced.per_row_ns(one.unpaced.spent.source_ns) for one in (before, after)]
    total = [one.unpaced.per_row_ns(one.unpaced.spent.total_ns) for one in (before, after)]
    return BenchRow(
        f"step: {what}",
        {"instances": after.shape.instances, "to": names[1]},
        after.unpaced.rows_per_s,
        "tuples/s",
        ratio=after.unpaced.rows_per_s / before.unpaced.rows_per_s,
        against=names[0],
        also={
            "x less source CPU": source[0] / max(source[1], 1e-9),
            "x less CPU in all": total[0] / max(total[1], 1e-9),
        },
    )
