"""A seeded generator of NEXMark's events, in the proportions and distributions of the original.

Of 50 events in a row, the first is a person, the next three are auctions, the others bids. Events
are equally far apart in event time; a share of them arrives late, within a bound. Half of the bids
go to the newest hot auction (each 100th), three quarters come from a hot bidder, and three quarters
of the auctions from a hot seller. A bidder or seller is a person whose id is known or one of the
next ten, which arrive soon; likewise for auctions.

It follows github.com/nexmark/nexmark (`nexmark-flink`, package `generator`), with three
differences: it is seeded; the ids of bidders start where those of persons do (there the first id
is added twice); and times are in microseconds, so that no two events of a stream share one.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...configs.units import US_PER_S
from ..shared.generated_file import write_stream
from .schemas import SCHEMAS
from .settings import NexmarkSettings
from .texts import CHANNELS, CITIES, FIRST_NAMES, LAST_NAMES, STATES, URLS, digits, joined, letters

__all__ = ["FIRST_ID", "NUMBER_LEAD", "generate", "tables"]

Integers = npt.NDArray[np.int64]

FIRST_ID = 1_000
"""The id of the first person and of the first auction."""
NUMBER_LEAD = 10
"""By how many an event may refer to persons or auctions that are still to come."""

_CHUNK_EVENTS = 500_000
_EPOCH = 50
_AUCTIONS = 3
_IN_FLIGHT_AUCTIONS = 100
_ACTIVE_PERSONS = 1_000
_HOT_EVERY = 100
_HOT_AUCTION_RATIO = 2
_HOT_SELLER_RATIO = 4
_HOT_BIDDER_RATIO = 4
_FIRST_CATEGORY, _CATEGORIES = 10, 5
_HOT_CHANNELS = 4
_START_US = 1_436_918_400_000_000  # 2015-07-15 00:00:00 UTC, as in the original
_PERSON_BYTES, _AUCTION_BYTES, _BID_BYTES = 200, 500, 100
_ITEM_NAME_BYTES, _DESCRIPTION_BYTES = (3, 20), (3, 100)


def generate(folder: str | Path, stream: str, settings: NexmarkSettings | None = None) -> Path:
    """Write the rows of one stream in the order of arrival; return the Parquet file's path.

    Memory: about 500,000 events. A file of that name is replaced.

    Args:
        folder: receives the file; made if need be.
        stream: "persons", "auctions" or "bids".
        settings: by default those of NEXMark, with 1,000,000 events.
    """
    return write_stream(
        folder, stream, SCHEMAS[stream], tables(stream, settings or NexmarkSettings())
    )


def tables(stream: str, settings: NexmarkSettings) -> Iterator[pa.Table]:
    """Yield the rows of one stream in the order of arrival, in parts; see `SCHEMAS`.

    Each stream is drawn apart from the others, so that making one alone gives the same rows.
    """
    first_offset, stop_offset, columns = _STREAMS[stream]
    number = list(_STREAMS).index(stream)
    for chunk, events in enumerate(_arrivals(settings)):
        offsets = events % _EPOCH
        chosen = events[(offsets >= first_offset) & (offsets < stop_offset)]
        random = np.random.default_rng((settings.seed, number, chunk))
        yield columns(_DrawnEvents(chosen, settings, random))


def _arrivals(settings: NexmarkSettings) -> Iterator[Integers]:
    """Yield the numbers of all events, in the order of arrival, in chunks.

    The delay of an event depends on its number and the seed alone, so a chunk is found without the
    ones before it.
    """
    reach = settings.delay_max_ms * settings.events_per_s // 1_000
    for start in range(0, settings.events + reach, _CHUNK_EVENTS):
        stop = min(start + _CHUNK_EVENTS, settings.events + reach)
        events = np.arange(max(0, start - reach), min(stop, settings.events), dtype=np.int64)
        arrivals = events + _delays(events, settings, reach)
        here = (arrivals >= start) & (arrivals < stop)
        yield events[here][np.argsort(arrivals[here], kind="stable")]


def _delays(events: Integers, settings: NexmarkSettings, reach: int) -> Integers:
    """Return by how many events each one arrives late, at most `reach` − 1; int64, same shape."""
    if reach == 0:
        return np.zeros(len(events), np.int64)
    mixed = _mixed(events.astype(np.uint64) + _mixed(np.array([settings.seed], np.uint64)))
    delayed = (mixed >> np.uint64(32)) % np.uint64(100) < settings.delayed_percent
    delay = (mixed & np.uint64(0xFFFFFFFF)) * np.uint64(reach) >> np.uint64(32)
    return np.where(delayed, delay, 0).astype(np.int64)


def _mixed(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return the output function of SplitMix64 (Steele, Lea, Flood 2014, figure 16)."""
    values = values * np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


class _DrawnEvents:
    """Events of one stream, and what their columns are drawn from.

    Attributes:
        events: the events' numbers, shape (n,).
        random: draws in the order of calls.
        times: event times, us since 1970, shape (n,).
        last_person: the newest person at the time of each event, from 0; shape (n,).
        last_auction: likewise for auctions; −1 before the first one.
    """

    def __init__(
        self, events: Integers, settings: NexmarkSettings, random: np.random.Generator
    ) -> None:
        self.events = events
        self.settings = settings
        self.random = random
        self.times = _time_us(events, settings)
        epochs, offsets = events // _EPOCH, events % _EPOCH
        self.last_person = epochs
        self.last_auction = epochs * _AUCTIONS + np.minimum(offsets, _AUCTIONS) - 1

    def below(self, stop: int | Integers) -> Integers:
        """Return a uniform whole number from 0 to `stop` − 1 for each event."""
        return self.random.integers(0, stop, len(self.events))

    def person(self) -> Integers:
        """Return the id of an active person for each event."""
        known = self.last_person + 1
        active = np.minimum(known, _ACTIVE_PERSONS)
        return FIRST_ID + known - active + self.below(active + NUMBER_LEAD)

    def auction(self) -> Integers:
        """Return the id of an auction in flight for each event."""
        first = np.maximum(self.last_auction - _IN_FLIGHT_AUCTIONS, 0)
        return FIRST_ID + first + self.below(self.last_auction - first + 1 + NUMBER_LEAD)

    def hot_or(
        self, ratio: int, newest: Integers, otherwise: Integers, beside: int = 0
    ) -> Integers:
        """Return hot ids for (`ratio` − 1) of `ratio` events, the other ids for the rest.

        Hot are each 100th person or auction and, with `beside`, those so many ids after them.
        """
        hot = FIRST_ID + beside + np.maximum(newest, 0) // _HOT_EVERY * _HOT_EVERY
        return np.where(self.below(ratio) > 0, hot, otherwise)

    def price(self) -> Integers:
        """Return prices from 100 to 100,000,000, uniform in their logarithm."""
        return np.rint(10.0 ** (self.random.random(len(self.events)) * 6.0) * 100.0).astype(
            np.int64
        )

    def words(self, sizes: tuple[int, int]) -> pa.Array:
        """Return texts of random letters, with sizes from the first to the second bound − 1."""
        return letters(self.random, self.random.integers(*sizes, len(self.events)))

    def extra(self, row_bytes: int, used: npt.ArrayLike) -> pa.Array:
        """Return letters that fill rows up to an average of `row_bytes`, ± 20 %."""
        missing = np.maximum(row_bytes - np.broadcast_to(used, len(self.events)), 0)
        spread = np.rint(missing * 0.2).astype(np.int64)
        sizes = missing - spread + self.below(np.maximum(2 * spread, 1))
        return letters(self.random, sizes)

    def table(self, stream: str, **columns: object) -> pa.Table:
        """Return the columns with the stream's types."""
        return pa.table(columns, schema=SCHEMAS[stream])


def _time_us(events: Integers, settings: NexmarkSettings) -> Integers:
    whole, rest = np.divmod(events, settings.events_per_s)
    return _START_US + whole * US_PER_S + rest * US_PER_S // settings.events_per_s


def _persons(chunk: _DrawnEvents) -> pa.Table:
    count = len(chunk.events)
    names = joined(
        FIRST_NAMES.take(chunk.below(len(FIRST_NAMES))),
        " ",
        LAST_NAMES.take(chunk.below(len(LAST_NAMES))),
    )
    email = joined(chunk.words((3, 8)), "@", chunk.words((3, 6)), ".com")
    card = digits(chunk.random, count)
    city = CITIES.take(chunk.below(len(CITIES)))
    state = STATES.take(chunk.below(len(STATES)))
    used = 8 + sum(_bytes(column) for column in (names, email, card, city, state))
    return chunk.table(
        "persons",
        id=FIRST_ID + chunk.last_person,
        name=names,
        email_address=email,
        credit_card=card,
        city=city,
        state=state,
        date_time=chunk.times,
        extra=chunk.extra(_PERSON_BYTES, used),
    )


def _auctions(chunk: _DrawnEvents) -> pa.Table:
    item, description = chunk.words(_ITEM_NAME_BYTES), chunk.words(_DESCRIPTION_BYTES)
    initial_bid = chunk.price()
    # On average an auction lasts until as many others have begun as are in flight.
    lasting = _IN_FLIGHT_AUCTIONS * _EPOCH // _AUCTIONS
    horizon_us = _time_us(chunk.events + lasting, chunk.settings) - chunk.times
    used = 8 + 8 * 5 + _bytes(item) + _bytes(description)
    return chunk.table(
        "auctions",
        id=FIRST_ID + chunk.last_auction,
        item_name=item,
        description=description,
        initial_bid=initial_bid,
        reserve=initial_bid + chunk.price(),
        date_time=chunk.times,
        expires=chunk.times + 1 + chunk.below(2 * horizon_us),
        seller=chunk.hot_or(_HOT_SELLER_RATIO, chunk.last_person, chunk.person()),
        category=_FIRST_CATEGORY + chunk.below(_CATEGORIES),
        extra=chunk.extra(_AUCTION_BYTES, used),
    )


def _bids(chunk: _DrawnEvents) -> pa.Table:
    hot_channel, channel = chunk.below(_HOT_CHANNELS), chunk.below(len(CHANNELS) - _HOT_CHANNELS)
    channels = np.where(chunk.below(2) > 0, hot_channel, _HOT_CHANNELS + channel)
    return chunk.table(
        "bids",
        auction=chunk.hot_or(_HOT_AUCTION_RATIO, chunk.last_auction, chunk.auction()),
        bidder=chunk.hot_or(_HOT_BIDDER_RATIO, chunk.last_person, chunk.person(), beside=1),
        price=chunk.price(),
        channel=CHANNELS.take(channels),
        url=URLS.take(channels),
        date_time=chunk.times,
        extra=chunk.extra(_BID_BYTES, 32),
    )


def _bytes(texts: pa.Array) -> Integers:
    """Return the size of each text, bytes."""
    offsets = np.frombuffer(texts.buffers()[1], np.int32)[texts.offset :][: len(texts) + 1]
    return np.diff(offsets).astype(np.int64)


_STREAMS = {
    "persons": (0, 1, _persons),
    "auctions": (1, 1 + _AUCTIONS, _auctions),
    "bids": (1 + _AUCTIONS, _EPOCH, _bids),
}
"""Stream → the first and the last + 1 of its offsets among 50 events, and its columns."""
