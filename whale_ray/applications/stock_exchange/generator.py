"""A source that generates orders from a seed, calibrated on a real day.

It generates rows of `schemas.ORDERS`: orders and cancels of many symbols with very different
activity, for as many days as needed, each with an opening and a closing auction; at a day's end all
orders expire. The same settings give the same rows, whatever the batch size.

Whale's trace has 274 million records of 6,649 symbols in a month. A generated day has as many
records as an average day of that trace, unless the requested number ends before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ...configs.errors import InputError
from ...configs.units import DAY_MS
from ...operators.sources.base import Source, SourceReader
from ...transport.wire.batch import Batch
from ...transport.wire.column import Column
from ..shared.ranges import check_whole
from . import generator_statistics as statistics
from .schemas import ORDERS

if TYPE_CHECKING:
    from ...operators.process import InstanceContext
    from ...operators.snapshots import Position
    from ...transport.wire.types import Schema

__all__ = ["OrderGeneratorSettings", "OrdersSource", "orders"]

_RECORDS_MAX = 10**12
_SYMBOLS_MAX = 400_000
#: 274 million in the 22 trading days of a month.
_RECORDS_A_DAY = 12_454_545
#: Midnight of 2023-07-11 in UTC, a morning in Shanghai; every day is a trading day.
_FIRST_DAY_MS = 1_689_033_600_000
_FIRST_SYMBOL = 600_000
_SYMBOL_BYTES = 9
#: Rows that one call of `read` generates and leaves out, so that it does not take long.
_SKIPPED_AT_ONCE = 1 << 16


@dataclass(frozen=True)
class OrderGeneratorSettings:
    """How much to generate.

    Raises:
        SettingsError: a value lies outside its range.
    """

    records: int = 1_000_000
    """Number of orders and cancels; rows that begin or end auctions are generated in addition."""
    symbols: int = 6_649
    """Number of stocks; the default is that of the paper's trace."""
    seed: int = 1
    """The same seed gives the same rows."""

    def __post_init__(self) -> None:
        check_whole("records", self.records, 1, _RECORDS_MAX)
        check_whole("symbols", self.symbols, 1, _SYMBOLS_MAX)
        check_whole("seed", self.seed, 0, 2**63 - 1)


@dataclass(frozen=True)
class OrdersSource(Source):
    """Generated orders."""

    settings: OrderGeneratorSettings

    def schema(self) -> Schema:
        """Return the columns."""
        return ORDERS

    def open(self, context: InstanceContext) -> SourceReader:
        """Start from the first row.

        Raises:
            InputError: there are several instances.
        """
        if context.parallelism > 1:
            msg = (
                f"generated orders have one order of their own: read them by 1 instance,"
                f" not by {context.parallelism}"
            )
            raise InputError(msg)
        return _GeneratedOrders(self.settings)

    def open_at(self, context: InstanceContext, positions: Sequence[Position]) -> SourceReader:
        """Generate all rows again, and leave out those that were read.

        Raises:
            InputError: there are several instances, or the settings are others.
        """
        settings = asdict(self.settings)
        for one in positions:
            if one["settings"] != settings:
                msg = (
                    f"{self.describe()}: other orders were generated before the checkpoint; pass "
                    f"the same settings, {one['settings']}, or start without restoring"
                )
                raise InputError(msg)
        reader = self.open(context)
        assert isinstance(reader, _GeneratedOrders)
        reader.skip(positions[0]["rows"])
        return reader

    def resumption(self) -> str:
        """Return that rows are generated again."""
        return "generates the rows again and skips"

    def describe(self) -> str:
        """Return records, symbols and seed."""
        of = self.settings
        return f"{of.records:,} generated orders of {of.symbols:,} symbols, seed {of.seed}"


def orders(settings: OrderGeneratorSettings | None = None) -> OrdersSource:
    """Return a source of generated orders."""
    return OrdersSource(settings or OrderGeneratorSettings())


class _GeneratedOrders(SourceReader):
    """State of the simulated market."""

    def __init__(self, settings: OrderGeneratorSettings) -> None:
        from .generator_kernels import MARKET, RECENT, STOCK, OrderStatistics

        self._settings = settings
        self._rows = self._rows_to_skip = 0
        self._left = settings.records
        self._random = np.random.default_rng([settings.seed, 1])
        seconds, sessions = statistics.seconds_of_a_day()
        alias, chances = _alias_table(statistics.shares_of_symbols(settings.symbols))
        self._parameters: OrderStatistics | None = OrderStatistics(
            *(seconds, sessions, np.zeros(len(seconds), np.int64), alias, chances),
            *(statistics.quantities(), statistics.offsets_in_ticks()),
            *(statistics.CANCEL_SHARE, statistics.BUY_SHARE, statistics.AGGRESSIVE_SHARE),
        )
        self._stocks = np.zeros(settings.symbols, STOCK)
        bids = statistics.opening_prices_in_ticks(settings.symbols, self._random)
        self._stocks["bid"], self._stocks["ask"] = bids, bids + 1
        self._stocks["bid_qty"] = self._stocks["ask_qty"] = 1_000
        self._recent = np.zeros((settings.symbols, RECENT), np.int64)
        names = [f"{_FIRST_SYMBOL + number}.SH" for number in range(settings.symbols)]
        self._names = np.frombuffer("".join(names).encode(), np.uint8).reshape(-1, _SYMBOL_BYTES)
        self._market = np.zeros(1, MARKET)
        self._market["random"] = self._random.integers(2**63)
        self._market["day_ms"] = _FIRST_DAY_MS - DAY_MS
        self._begin_day()

    @property
    def finished(self) -> bool:
        """Whether the last day has ended."""
        return self._parameters is None

    def read(self, max_rows: int) -> Batch | None:
        """Return the next rows; None while rows are skipped."""
        from .generator_kernels import Made, make_rows

        if self._parameters is None:
            return None
        skips = self._rows_to_skip > 0
        if skips:
            max_rows = min(self._rows_to_skip, _SKIPPED_AT_ONCE)
        kinds = ("i8", "i8", "i1", "i1", "i8", "i8", "i8")
        made = Made(*(np.empty(max_rows, kind) for kind in kinds))
        rows, ended = make_rows(self._market, self._stocks, self._recent, self._parameters, made)
        if ended:
            self._begin_day()
        if skips:
            self._rows_to_skip -= rows
            return None
        self._rows += rows
        return self._batch_of(made, rows) if rows else None

    def skip(self, rows: int) -> None:
        """Leave out rows from the start."""
        self._rows = self._rows_to_skip = rows

    def position(self) -> Position:
        """Return the number of rows read, and the settings."""
        return {"rows": self._rows, "settings": asdict(self._settings)}

    def _batch_of(self, made: tuple[npt.NDArray[np.generic], ...], rows: int) -> Batch:
        times_ms, symbols, *others = (array[:rows] for array in made)
        types = [field.type for field in ORDERS]
        offsets = np.arange(0, _SYMBOL_BYTES * rows + 1, _SYMBOL_BYTES, dtype=np.int32)
        columns = [
            Column(types[0], times_ms),
            Column(types[1], self._names[symbols].ravel(), offsets),
        ]
        columns += [Column(kind, array) for kind, array in zip(types[2:], others, strict=True)]
        return Batch(ORDERS, columns, rows)

    def _begin_day(self) -> None:
        """Begin the next day, if records are left to generate."""
        records = min(self._left, _RECORDS_A_DAY)
        self._left -= records
        if not records:
            self._parameters = None
        elif self._parameters is not None:
            cumulated = np.cumsum(statistics.weights_of_seconds(self._random))
            ends = np.round(cumulated / cumulated[-1] * records).astype(np.int64)
            self._parameters = self._parameters._replace(ends=ends)
            self._market["day_ms"] += DAY_MS
            for name in ("message", "second", "first"):
                self._market[name] = 0


def _alias_table(
    shares: npt.NDArray[np.float64],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Return what draws from a distribution in constant time: aliases and chances (Vose)."""
    count = len(shares)
    chances = (shares * count).astype(np.float64)
    alias = np.arange(count, dtype=np.int64)
    small = [number for number in range(count) if chances[number] < 1.0]
    large = [number for number in range(count) if chances[number] >= 1.0]
    while small and large:
        less, more = small.pop(), large[-1]
        alias[less] = more
        chances[more] -= 1.0 - chances[less]
        if chances[more] < 1.0:
            small.append(large.pop())
    for number in (*small, *large):
        chances[number] = 1.0
    return alias, chances
