"""A seeded generator of sellers, auctions and bids, in the proportions of Slash's evaluation.

Of 9 events in a row the first is a seller, the next four are auctions, the others bids, so the
ratios of auctions and of bids to sellers are 4 to 1 (thesis, 4.7.2.3). Every auction and bid names
one of the 1,000 newest sellers who are there, by default each as likely. The auctions of bids
follow a Pareto distribution over all that are there, the oldest being the heavy hitters (4.7.2.2).
The thesis does not tell its parameters: here the shape is 1.16 (80 % of a quantity with 20 % of its
owners) and the scale 1,000, so that the first 1,000 auctions have half of the bids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..shared.generated_file import write_stream
from ..shared.zipf import zipf_ranks
from .schemas import RECORD_BYTES, SCHEMAS
from .settings import SlashNexmarkSettings

__all__ = ["generate", "tables"]

Int64s = npt.NDArray[np.int64]

_CHUNK_CYCLES = 50_000
_CYCLE = 9
_AUCTIONS, _BIDS = 4, 4
_FIRST_ID = 1_000
_ACTIVE_SELLERS = 1_000
_PARETO_SHAPE, _PARETO_SCALE = 1.16, 1_000
_START_US = 1_436_918_400_000_000  # 2015-07-15 00:00:00 UTC, as in NEXMark
_HIGHEST_PRICE_LOG10 = 6
_TEXT = "".join(chr(ord("a") + place % 26) for place in range(max(RECORD_BYTES.values())))


@dataclass(frozen=True)
class _Drawn:
    """The events of one stream that are made together; the arrays have the shape (rows,)."""

    numbers: Int64s
    """Of the rows in the stream, from 0."""
    sellers: Int64s
    """How many sellers are there."""
    times_us: Int64s
    settings: SlashNexmarkSettings
    random: np.random.Generator

    def seller_ids(self) -> Int64s:
        active = np.minimum(self.sellers, _ACTIVE_SELLERS)
        ranks = zipf_ranks(self.random, len(self.numbers), _ACTIVE_SELLERS, self.settings.zipf)
        return _FIRST_ID + self.sellers - 1 - ranks % active

    def texts(self, stream: str) -> pa.Array:
        fixed = 8 * sum(field.type != pa.string() for field in SCHEMAS[stream])
        text = pa.array([_TEXT[: RECORD_BYTES[stream] - fixed]])
        return text.take(pa.array(np.zeros(len(self.numbers), np.int64)))


def generate(folder: str | Path, stream: str, settings: SlashNexmarkSettings | None = None) -> Path:
    """Write the rows of one stream; return the Parquet file's path.

    Memory: 450,000 events. A file of that name is replaced.

    Args:
        folder: receives the file; made if need be.
        stream: "sellers", "auctions" or "bids".
        settings: by default 1,000,000 events.
    """
    return write_stream(
        folder, stream, SCHEMAS[stream], tables(stream, settings or SlashNexmarkSettings())
    )


def tables(stream: str, settings: SlashNexmarkSettings) -> Iterator[pa.Table]:
    """Yield the rows of one stream in the order of event time, in parts; see `SCHEMAS`.

    Each stream is drawn apart from the others, so that making one alone gives the same rows.
    """
    first_offset, per_cycle, columns = _STREAMS[stream]
    place = list(_STREAMS).index(stream)
    for chunk, first in enumerate(range(0, -(-settings.events // _CYCLE), _CHUNK_CYCLES)):
        cycles = np.arange(first, first + _CHUNK_CYCLES, dtype=np.int64)
        events = (_CYCLE * cycles[:, None] + first_offset + np.arange(per_cycle)).ravel()
        events = events[events < settings.events]
        cycle = events // _CYCLE
        drawn = _Drawn(
            numbers=cycle * per_cycle + events % _CYCLE - first_offset,
            sellers=cycle + 1,
            times_us=_START_US + events * 1_000_000 // settings.events_per_s,
            settings=settings,
            random=np.random.default_rng((settings.seed, place, chunk)),
        )
        yield pa.table(columns(drawn), schema=SCHEMAS[stream])


def _sellers(drawn: _Drawn) -> dict[str, object]:
    return {
        "id": _FIRST_ID + drawn.numbers,
        "date_time": drawn.times_us,
        "extra": drawn.texts("sellers"),
    }


def _auctions(drawn: _Drawn) -> dict[str, object]:
    return {
        "id": _FIRST_ID + drawn.numbers,
        "date_time": drawn.times_us,
        "seller": drawn.seller_ids(),
        "extra": drawn.texts("auctions"),
    }


def _bids(drawn: _Drawn) -> dict[str, object]:
    known = (drawn.sellers * _AUCTIONS).astype(np.float64)
    ranks = _PARETO_SCALE * drawn.random.pareto(_PARETO_SHAPE, len(drawn.numbers)) % known
    price = 10 ** (drawn.random.random(len(drawn.numbers)) * _HIGHEST_PRICE_LOG10) * 100
    return {
        "auction": _FIRST_ID + np.floor(ranks).astype(np.int64),
        "date_time": drawn.times_us,
        "seller": drawn.seller_ids(),
        "price": np.round(price).astype(np.int64),
    }


_STREAMS: dict[str, tuple[int, int, Callable[[_Drawn], dict[str, object]]]] = {
    "sellers": (0, 1, _sellers),
    "auctions": (1, _AUCTIONS, _auctions),
    "bids": (1 + _AUCTIONS, _BIDS, _bids),
}
"""Stream → its first place in a cycle of events, how many it has there, and what makes its rows."""
