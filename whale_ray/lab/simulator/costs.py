"""Costs of a machine as linear functions of a slice's bytes, kept as JSON (YAML is read, too).

Each cost is linear: a constant per slice and a constant per byte. `MachineCosts.slice_costs` reads
them at the size of a slice and adds the link.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...configs.errors import InputError, UsageError
from .model import SliceCosts

MESSAGE_BYTES = 160
"""Bytes of a slice of one frame beside its rows: headers of frame and message, its columns' layout.
"""
PACKET_BYTES, PACKET_PAYLOAD_BYTES = 1514, 1448
"""Bytes of a full packet on Ethernet, and its payload of a TCP stream with timestamps."""
SLICE_BYTES_MAX = 16 << 20


@dataclass(frozen=True)
class LinearCost:
    """Seconds per slice, and more per byte of it."""

    per_slice_s: float
    per_byte_s: float = 0.0

    def at(self, nbytes: int) -> float:
        """Return the seconds for a slice of so many bytes."""
        return self.per_slice_s + nbytes * self.per_byte_s


@dataclass(frozen=True)
class LinkRate:
    """A host's link, in each direction; without a rate it is as fast as the machine."""

    mbit_per_s: float | None = None
    burst_bytes: int = 0
    """Bytes that an idle link sends at once (a token bucket's depth)."""
    efficiency: float = 1.0
    """Share of the rate that TCP uses, headers not counted."""
    delay_s: float = 0.0
    """Additional latency of a slice on an idle link, for TCP and the kernel."""

    def __post_init__(self) -> None:
        """Raise UsageError for a rate that is not above 0."""
        if self.mbit_per_s is not None and not self.mbit_per_s > 0:
            msg = f"a link of {self.mbit_per_s} Mbit/s carries nothing; leave it out for no limit"
            raise UsageError(msg)

    def seconds(self, nbytes: float) -> float:
        """Return how long so many bytes take on the wire."""
        if self.mbit_per_s is None:
            return 0.0
        return nbytes * 8 / (self.mbit_per_s * 1e6 * self.efficiency)


@dataclass(frozen=True)
class MachineCosts:
    """Costs of one machine; see SliceCosts for what each is of."""

    machine: str
    """Where and when they were measured; printed on every figure."""
    serialize: LinearCost
    """t_s: of the source's worker, which serializes beside its host's relay."""
    encode: LinearCost
    """The part of it that is repeated where a slice is serialized once per instance."""
    send: LinearCost
    receive: LinearCost
    process: LinearCost
    turn_s: float
    wake_s: float
    settle_s: float
    worker_wake_s: float
    delay_s: float
    control_s: float
    per_tuple: bool = False
    """Whether the costs are of single tuples, whatever their bytes, so that nothing is sliced."""

    def slice_costs(
        self, slice_bytes: int, link: LinkRate | None = None, **changes: float
    ) -> SliceCosts:
        """Return what a slice of so many bytes costs on a link; `changes` replace single costs.

        Raises UsageError for a slice of no bytes or too many.
        """
        if not 1 <= slice_bytes <= SLICE_BYTES_MAX:
            msg = f"slices of {slice_bytes:,} bytes: they must have 1 to {SLICE_BYTES_MAX:,}"
            raise UsageError(msg)
        return dataclasses.replace(self._at(slice_bytes, link), **changes)

    def fixed_costs(self, link: LinkRate | None = None, **changes: float) -> SliceCosts:
        """Return the costs of a slice that do not depend on its size; see `Scenario.fixed`."""
        return dataclasses.replace(self._at(0, link), **changes)

    def _at(self, slice_bytes: int, link: LinkRate | None) -> SliceCosts:
        link = link or LinkRate()
        return SliceCosts(
            serialize_s=0.0,
            produce_s=self.serialize.at(slice_bytes),
            send_s=self.send.at(slice_bytes),
            receive_s=self.receive.at(slice_bytes),
            process_s=self.process.at(slice_bytes),
            turn_s=self.turn_s,
            wake_s=self.wake_s,
            settle_s=self.settle_s,
            worker_wake_s=self.worker_wake_s,
            delay_s=self.delay_s + link.delay_s,
            control_s=self.control_s,
            occupancy_s=link.seconds(wire_bytes(slice_bytes)),
            burst_s=link.seconds(link.burst_bytes),
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the costs as plain values."""
        values = dataclasses.asdict(self)
        del values["per_tuple"]  # only published constants are
        return values

    def write(self, path: Path) -> None:
        """Write them as JSON; InputError if that cannot be."""
        try:
            path.write_text(json.dumps(self.as_dict(), indent=2) + "\n", encoding="utf-8")
        except OSError as error:
            msg = f"cannot write {path}: {error.strerror}"
            raise InputError(msg) from error


def wire_bytes(slice_bytes: int) -> float:
    """Return how many bytes a slice has on an Ethernet link, headers included."""
    return (slice_bytes + MESSAGE_BYTES) * PACKET_BYTES / PACKET_PAYLOAD_BYTES


def read_costs(path: Path) -> MachineCosts:
    """Return the costs in a file that `whale-ray simulate --calibrate` wrote.

    Raises InputError if it is missing or not such a file.
    """
    import yaml

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        msg = f"cannot read {path}: {error.strerror}"
        raise InputError(msg) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        msg = f"{path} is neither JSON nor YAML; write one with whale-ray simulate --calibrate"
        raise InputError(msg) from error
    return _costs_of(content, path)


def _costs_of(content: object, path: Path) -> MachineCosts:
    names = [field.name for field in dataclasses.fields(MachineCosts)][:-1]
    if not isinstance(content, Mapping) or sorted(content) != sorted(names):
        msg = f"{path} does not have the costs {', '.join(names)}"
        raise InputError(msg)
    values: dict[str, Any] = {"machine": str(content["machine"])}
    for name in names[1:]:
        if name in _LINES:
            values[name] = _line_of(content[name], f"{path}: {name}")
        else:
            values[name] = _seconds_of(content[name], f"{path}: {name}")
    return MachineCosts(**values)


_LINES = ("serialize", "encode", "send", "receive", "process")


def _line_of(value: object, where: str) -> LinearCost:
    parts = [field.name for field in dataclasses.fields(LinearCost)]
    if not isinstance(value, Mapping) or sorted(value) != sorted(parts):
        msg = f"{where} must have {' and '.join(parts)}"
        raise InputError(msg)
    return LinearCost(*(_seconds_of(value[part], f"{where}.{part}") for part in parts))


def _seconds_of(value: object, where: str) -> float:
    try:
        # YAML reads 1e-06 as text.
        seconds = float(value) if isinstance(value, (int, float, str)) else math.nan
    except ValueError:
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds >= 0):
        msg = f"{where} must be seconds, 0 or more"
        raise InputError(msg)
    return seconds
