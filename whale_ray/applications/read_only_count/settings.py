"""Settings of the generator, with the thesis' range of keys."""

from __future__ import annotations

from dataclasses import dataclass

from ..shared.ranges import check_number, check_whole
from ..shared.zipf import ZIPF_MAX

__all__ = ["ReadOnlySettings"]


@dataclass(frozen=True)
class ReadOnlySettings:
    """How many records to generate, and of how many keys.

    Raises:
        SettingsError: a value lies outside its range.
    """

    records: int = 10_000_000
    """A key and a time of creation, 8 bytes each; records are 1 µs apart."""
    keys: int = 100_000_000
    """The range from which keys are drawn."""
    zipf: float = 0.0
    """The exponent of the distribution of keys; 0: uniform."""
    seed: int = 1
    """The same settings give the same rows."""

    def __post_init__(self) -> None:
        check_whole("records", self.records, 1, 10**12)
        check_whole("keys", self.keys, 1, 10**12)
        check_number("zipf", self.zipf, 0, ZIPF_MAX)
        check_whole("seed", self.seed, 0, 2**63 - 1)
