"""RDMA verbs: READ, WRITE and SEND against TCP, a bare loop over pyverbs, perftest and fused calls.

Both hosts are this machine: the first and the last of its devices, a process each. For ratios with
the bare loop, the backends take turns, and neither side of a channel touches the bytes, as the bare
loop does not: only moving the bytes is compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Literal

from ...configs.settings import TransportSettings
from ...configs.units import KIB
from ...transport.verbs.carriers import load_where_devices_are
from ...transport.verbs.device import Device, device_names
from ...transport.verbs.library import NoVerbsError
from ...transport.verbs.link_resources import Data
from .backends import (
    Backend,
    Measurement,
    Measurements,
    MessageLoad,
    measure_backend,
    paired_ratio,
    take_turns,
)
from .bare_verbs import UNDER_WAY_MAX, BareBackend
from .channel_backends import OVER_TCP, ChannelBackend, HostRingSides
from .echoes import BareEcho, HostEcho, one_way_us
from .peers import perftest
from .python_side import python_rows
from .report import Aim, BenchRow, median, processor_name
from .vega import FUSED, fused_us

AIM_BYTES: Final = 256 * KIB
_DATA: Final[Mapping[str, Literal["read", "write", "send"]]] = {
    "read": "read",
    "write": "write",
    "send": "send",
}
_AIM_MEMORY: Final = 64 * AIM_BYTES
"""Bytes that the bare loop has under way; a channel's ring holds as many."""
_AIM_DURATION_NS: Final = 1_000_000_000
_TCP: Final = "tcp over loopback"
_WRITE: Final = "verbs, WRITE"
_NOTES: Final = (
    "Verbs: both hosts are this machine, with a device each. Without a copy: neither side of a",
    "channel touches the bytes, nor does the bare loop; perftest, in C, ran once, for 2 s.",
    "Emulated: by QEMU, where Python is about 18 times slower, so only ratios within one run",
    "count. Python side: the time of a slice without the library's calls; whole link: all work of",
    "both hosts.",
)
HOW_TO: Final = "make bench-rdma measures in a small virtual machine with soft-RoCE devices"


@dataclass(frozen=True, slots=True)
class VerbsEffort:
    """How much is measured. An emulated processor needs about 4 s for each sample."""

    sizes: Sequence[int]
    aim_repetitions: int
    duration_ns: int
    """Duration of each sample, without its start and end."""
    latency_bytes: Sequence[int]
    echoes: int
    batches: int
    """Of python_side.py."""


FULL: Final = VerbsEffort(
    (4 * KIB, 32 * KIB, AIM_BYTES, 1024 * KIB), 5, 1_000_000_000, (8, 64, 512), 200, 2000,
)  # fmt: skip
QUICK: Final = VerbsEffort(
    (4 * KIB, AIM_BYTES), 3, 700_000_000, (8, 512), 50, 500
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Setting:
    """The devices of both sides."""

    devices: tuple[str, str]
    gids: tuple[int, int]
    """Indices of their addresses."""
    emulated: Mapping[str, object]
    """The rows' remark about an emulated processor."""

    @property
    def parameters(self) -> dict[str, object]:
        """The parameters of every row."""
        return {"devices": " to ".join(self.devices), **self.emulated}

    def settings(self, way: str) -> tuple[TransportSettings, ...]:
        """Return those of both hosts."""
        over_verbs = TransportSettings(between_hosts="verbs", verbs_data=_DATA[way])
        return tuple(replace(over_verbs, rdma_device=device) for device in self.devices)


def emulated() -> dict[str, object]:
    """Return the rows' remark about an emulated processor; empty elsewhere."""
    name = processor_name()
    return {"emulated": "QEMU TCG"} if "TCG" in name else {}


def notes() -> tuple[str, ...]:
    """Return notes on the figures of verbs, or why there are none."""
    why_not = missing()
    if why_not:
        return (f"Verbs were not measured: {why_not}. {HOW_TO}.",)
    return _NOTES


def missing() -> str:
    """Return why verbs cannot be measured here; empty if they can."""
    try:
        library = load_where_devices_are()
    except NoVerbsError as error:
        return str(error)
    return "" if device_names(library) else "there is no RDMA device"


def verbs_rows(effort: VerbsEffort) -> list[BenchRow]:
    """Measure all that this machine can; without a device, only the Python side."""
    rows = python_rows(effort.batches, emulated())
    if missing():
        return rows
    setting = find_setting()
    rows += aim_rows(effort, setting)
    rows += size_rows(effort, setting)
    rows += latency_rows(effort, setting)
    return rows


def find_setting() -> Setting:
    """Look for the devices. Raises NoVerbsError if there are none."""
    library = load_where_devices_are()
    names = device_names(library)
    chosen = names[0], names[-1]
    gids = []
    for name in chosen:
        device = Device(library, name)
        gids.append(device.best_gid.index)
        device.close()
    return Setting(chosen, (gids[0], gids[1]), emulated())


def aim_rows(effort: VerbsEffort, setting: Setting) -> list[BenchRow]:
    """Measure READ and WRITE of 256 KiB against the bare loop, and both against perftest."""
    load = MessageLoad(
        AIM_BYTES, 1, _AIM_DURATION_NS, as_it_lies=True, memory_bytes_min=_AIM_MEMORY
    )
    ways = {}
    for way in ("read", "write"):
        ways[way] = _ours(way, setting)
        ways[_bare_name(way)] = _bare(way, setting)
    samples = take_turns(ways, load, effort.aim_repetitions)
    rows = []
    for way in ("read", "write"):
        bare = _bare_name(way)
        ratio = paired_ratio(samples, way, bare)
        rows.append(_row(way, load, samples, setting, ratio, bare, Aim("ratio", "at least", 0.9)))
        rate = _perftest(way, load, setting)
        if rate:
            ratio = median([sample.rate * load.nbytes for sample in samples[way]]) / rate
            rows.append(_row(way, load, samples, setting, ratio, perftest.BANDWIDTH[way]))
        rows.append(_row(bare, load, samples, setting))
    return rows


def size_rows(effort: VerbsEffort, setting: Setting) -> list[BenchRow]:
    """Measure READ, WRITE, SEND and TCP with every size, copied in and read in place."""
    rows = []
    for nbytes in effort.sizes:
        load = MessageLoad(nbytes, 1, effort.duration_ns)
        ways: dict[str, Callable[[MessageLoad], Measurement]] = {
            way: _ours(way, setting) for way in _DATA
        }
        ways[_TCP] = _sampling(_tcp_lane)
        bare = {_bare_name(way): _bare(way, setting) for way in _DATA}
        samples = take_turns({**ways, **bare}, load, 1)
        for way in ways:
            against = "" if way == _TCP else _TCP
            ratio = paired_ratio(samples, way, against) if against else None
            also = {}
            if way in _DATA:
                also[f"x {_bare_name(way)}"] = paired_ratio(samples, way, _bare_name(way))
            rows.append(_row(way, load, samples, setting, ratio, against, also=also))
    return rows


def latency_rows(effort: VerbsEffort, setting: Setting) -> list[BenchRow]:
    """Measure small messages one way: rings over verbs and TCP, bare, perftest, fused."""
    sizes, count = effort.latency_bytes, effort.echoes
    found = {
        _WRITE: one_way_us(HostEcho(setting.settings("write")), sizes, count),
        "verbs, READ": one_way_us(HostEcho(setting.settings("read")), sizes, count),
        _TCP: one_way_us(HostEcho(OVER_TCP), sizes, count),
        "bare SEND": one_way_us(BareEcho(setting.devices), sizes, count),
        FUSED: {nbytes: fused_us(nbytes) for nbytes in sizes},
    }
    if perftest.installed():
        found[perftest.LATENCY] = {
            nbytes: perftest.latency_us(setting.devices, setting.gids, nbytes, max(100, count))
            for nbytes in sizes
        }
    rows = []
    for nbytes in sizes:
        ours = found[_WRITE][nbytes]
        for how, medians in found.items():
            ratio = None if how == _WRITE else ours / medians[nbytes]
            against = "" if ratio is None else _WRITE
            what = {"bytes": nbytes, "how": how, **setting.parameters}
            rows.append(
                BenchRow(
                    "message between hosts, one way", what, medians[nbytes], "µs", ratio, against
                )
            )
    return rows


def _bare_name(way: str) -> str:
    return f"bare pyverbs loop, {way.upper()}"


def _sampling(make: Callable[[MessageLoad], Backend]) -> Callable[[MessageLoad], Measurement]:
    def sample(load: MessageLoad) -> Measurement:
        with make(load) as backend:
            return measure_backend(backend, load)

    return sample


def _ours(way: str, setting: Setting) -> Callable[[MessageLoad], Measurement]:
    sides = partial(HostRingSides, settings=setting.settings(way))
    return _sampling(partial(ChannelBackend, sides))


def _bare(way: str, setting: Setting) -> Callable[[MessageLoad], Measurement]:
    return _sampling(partial(BareBackend, Data[way.upper()], setting.devices))


def _tcp_lane(load: MessageLoad) -> Backend:
    return ChannelBackend(HostRingSides, load)


def _perftest(way: str, load: MessageLoad, setting: Setting) -> float:
    """Return perftest's bytes per second with the bare loop's number under way; 0 without it."""
    if not perftest.installed():
        return 0.0
    depth = min(load.memory_bytes // load.nbytes, UNDER_WAY_MAX)
    return perftest.bandwidth(way, setting.devices, setting.gids, load.nbytes, depth)


def _row(
    way: str,
    load: MessageLoad,
    samples: Measurements,
    setting: Setting,
    ratio: float | None = None,
    against: str = "",
    aim: Aim | None = None,
    also: Mapping[str, float] | None = None,
) -> BenchRow:
    """Return a row with the rate of messages."""
    how = f"verbs, {way.upper()}" if way in _DATA else way
    touched = "without a copy" if load.as_it_lies else "copied in, read in place"
    return BenchRow(
        "messages between hosts",
        {"KiB": load.nbytes / KIB, "how": how, "bytes": touched, **setting.parameters},
        median([sample.rate for sample in samples[way]]) * load.nbytes / 1e6,
        "MB/s",
        ratio,
        against,
        aim,
        median([sample.cores for sample in samples[way]]),
        also or {},
    )
