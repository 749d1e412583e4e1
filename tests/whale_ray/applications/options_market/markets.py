"""Messages read by `struct`, lines turned by hand, and decisions as one SQL query gives them."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import duckdb
import numpy as np
import pyarrow as pa

from whale_ray.applications.options_market.contracts import LISTED, ContractBook
from whale_ray.applications.options_market.lines import FeedLines
from whale_ray.applications.options_market.messages import MESSAGES
from whale_ray.applications.options_market.settings import OptionsMarketSettings
from whale_ray.operators.process import InstanceContext
from whale_ray.transport.clock import VirtualClock
from whale_ray.transport.wire.batch import Batch
from whale_ray.transport.wire.column import Column

FORMAT = struct.Struct("<HBBHHqqIIqq")
MAGIC = 0x4D4F
START_NS = 1_000_000_000_000


class FeedMessage(NamedTuple):
    """A message without what is the same in all of them."""

    kind: str
    line: int
    sequence: int
    due_ns: int
    contract: int = 0
    quantity: int = 0
    price_milli: int = 0
    underlying_milli: int = 0


def encoded(message: FeedMessage, *, magic: int = MAGIC, version: int = 1) -> bytes:
    """Return a message as it goes over a line."""
    values = (message.line, 0, *message[2:])
    plain = FORMAT.pack(magic, version, ord(message.kind), *values)
    return plain[:6] + struct.pack("<H", sum(struct.unpack("<24H", plain)) % 65_536) + plain[8:]


def decoded(data: bytes) -> FeedMessage:
    """Return the message; it must be whole."""
    magic, version, kind, line, total, *values = FORMAT.unpack(data)
    assert (magic, version) == (MAGIC, 1)
    assert total == (sum(struct.unpack("<24H", data)) - total) % 65_536
    return FeedMessage(chr(kind), line, *values)


def batch_of(messages: Iterable[bytes]) -> Batch:
    data = np.frombuffer(b"".join(messages), "V48")
    return Batch(MESSAGES, [Column(MESSAGES.field("message").type, data)], len(data))


def context(instance: int, parallelism: int, clock: VirtualClock | None = None) -> InstanceContext:
    clock = clock or VirtualClock(START_NS)
    return InstanceContext("test", "any", instance, (instance,), parallelism, 0, clock)


def messages_of(
    book: ContractBook,
    settings: OptionsMarketSettings,
    line: int,
    *,
    looks_ns: Sequence[int] = (),
    max_rows: int = 1 << 20,
) -> list[FeedMessage]:
    """Return what is read of a line whose reader looks at these moments and then at the end."""
    clock = VirtualClock(START_NS)
    reader = FeedLines(book, settings).open(context(line, settings.feeds, clock))
    assert reader.read(max_rows) is None  # nothing is due when a line begins
    read: list[FeedMessage] = []
    for look_ns in (*looks_ns, round(settings.seconds * 1e9)):
        clock.advance(START_NS + look_ns - clock.monotonic_ns())
        while (batch := reader.read(max_rows)) is not None:
            assert 0 < batch.num_rows <= max_rows
            read += [decoded(bytes(one)) for one in batch.column("message").data]
            if batch.num_rows < max_rows or reader.finished:
                break
            clock.advance(1_000_000)  # 1 ms until the line is read again
    assert reader.finished and reader.read(max_rows) is None
    return read


def all_trades(book: ContractBook, settings: OptionsMarketSettings) -> list[FeedMessage]:
    """Return all that is offered on all lines."""
    messages = [
        message for line in range(settings.feeds) for message in messages_of(book, settings, line)
    ]
    return [message for message in messages if message.kind == "T"]


def small_book(contracts: int = 12) -> ContractBook:
    """Return contracts near the money, the first one traded most."""
    listed = np.zeros(contracts, LISTED)
    listed["right"] = np.where(np.arange(contracts) % 2, 1, -1)
    listed["strike_milli"] = 95_000 + 1_000 * np.arange(contracts)
    listed["tick_milli"] = 50
    listed["underlying"] = np.arange(contracts) % 3
    listed["underlying_milli"] = 100_000
    listed["time_value_milli"] = 1_500.0
    listed["trades"] = 1_000.0 / (1 + np.arange(contracts))
    names = tuple(f"C{number}" for number in range(contracts))
    return ContractBook(names, listed, 1_000.0, "a test")


def expected_decisions(
    book: ContractBook, trades: Sequence[FeedMessage], threshold_bp: int
) -> list[tuple[int, ...]]:
    """Return (contract, line, sequence, price, average, signal), by contract and sequence."""
    names = ("contract", "line", "sequence", "price_milli", "quantity", "underlying_milli")
    rows = pa.table({name: [getattr(one, name) for one in trades] for name in names})
    listed = pa.table(
        {
            "contract": np.arange(len(book)),
            "sign": book.listed["right"].copy(),
            "strike_milli": book.listed["strike_milli"].copy(),
        }
    )
    with duckdb.connect() as database:
        database.register("trades", rows)
        database.register("listed", listed)
        return database.sql(f"""
            WITH averaged AS (
              SELECT *, CAST(SUM(price_milli * quantity) OVER so_far AS BIGINT)
                        // CAST(SUM(quantity) OVER so_far AS BIGINT) AS average
              FROM trades JOIN listed USING (contract)
              WINDOW so_far AS (PARTITION BY contract ORDER BY sequence
                                ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)),
            judged AS (
              SELECT *, CASE
                WHEN price_milli < (underlying_milli - strike_milli) * sign THEN 1
                WHEN price_milli * 10000 <= average * (10000 - {threshold_bp}) THEN 1
                WHEN price_milli * 10000 >= average * (10000 + {threshold_bp}) THEN -1
                ELSE 0 END AS signal
              FROM averaged),
            followed AS (
              SELECT *, LAG(signal, 1, 0) OVER (PARTITION BY contract ORDER BY sequence) AS before
              FROM judged)
            SELECT contract, line, sequence, price_milli, average, signal
            FROM followed WHERE signal <> before ORDER BY contract, sequence""").fetchall()
