"""NEXMark's queries in SQL, for DuckDB over the same rows."""

from __future__ import annotations

from collections.abc import Mapping

import duckdb
import numpy as np
import pyarrow as pa

_RANKS = {1: "price < 10000", 2: "price >= 10000 AND price < 1000000", 3: "price >= 1000000"}


def _statistics(*counted: str) -> str:
    """Return the counts of queries 15 to 17: of bids, or of distinct bidders and auctions."""
    found = []
    for name in counted:
        count = "count(*)" if name == "bids" else f"count(DISTINCT {name[:-1]})"
        found.append(f"{count} AS total_{name}")
        found += [
            f"{count} FILTER (WHERE {condition}) AS rank{rank}_{name}"
            for rank, condition in _RANKS.items()
        ]
    return ", ".join(found)


_DAY = """time_bucket(INTERVAL '1 day', date_time) AS window_start,
    time_bucket(INTERVAL '1 day', date_time) + INTERVAL '1 day' AS window_end"""

_HIGHEST = """
    SELECT auction, price, bidder, date_time, extra FROM bids JOIN (
        SELECT time_bucket(INTERVAL '10 seconds', date_time) AS start, max(price) AS highest
        FROM bids GROUP BY ALL)
    ON price = highest AND time_bucket(INTERVAL '10 seconds', date_time) = start"""

SQL: Mapping[str, str] = {
    "0": "SELECT auction, bidder, price, date_time, extra FROM bids",
    "1": "SELECT auction, bidder, price * 0.908::DOUBLE AS price, date_time, extra FROM bids",
    "2": "SELECT auction, price FROM bids WHERE auction % 123 = 0",
    "3": """
        SELECT name, city, state, auctions.id FROM persons JOIN auctions ON persons.id = seller
        WHERE category = 10 AND state IN ('OR', 'ID', 'CA')""",
    "4": """
        WITH final AS (
            SELECT id, category, max(price) AS final FROM auctions JOIN bids ON id = auction
            WHERE bids.date_time BETWEEN auctions.date_time AND expires GROUP BY id, category)
        SELECT category, sum(final)::DOUBLE / count(*) AS avg_final FROM final GROUP BY category""",
    "5": """
        WITH hops AS (
            SELECT auction, time_bucket(INTERVAL '2 seconds', date_time)
                - INTERVAL '1 second' * before AS window_start
            FROM bids, (SELECT unnest([0, 2, 4, 6, 8]) AS before)),
        counts AS (SELECT window_start, auction, count(*) AS num FROM hops GROUP BY ALL)
        SELECT window_start, window_start + INTERVAL '10 seconds' AS window_end, auction, num
        FROM counts QUALIFY num = max(num) OVER (PARTITION BY window_start)""",
    "7": _HIGHEST,
    "7-one-to-many": _HIGHEST,
    "8": """
        SELECT DISTINCT persons.id, name, time_bucket(INTERVAL '10 seconds', persons.date_time)
            AS window_start
        FROM persons JOIN auctions ON persons.id = seller
            AND time_bucket(INTERVAL '10 seconds', persons.date_time)
                = time_bucket(INTERVAL '10 seconds', auctions.date_time)""",
    "9": """
        SELECT id, item_name, description, initial_bid, reserve, auctions.date_time, expires,
            seller, category, auctions.extra, bidder, price, bids.date_time AS bid_time,
            bids.extra AS bid_extra
        FROM auctions JOIN bids ON id = auction
        WHERE bids.date_time BETWEEN auctions.date_time AND expires QUALIFY row_number()
            OVER (PARTITION BY id ORDER BY price DESC, bids.date_time) = 1""",
    "11": """
        WITH marked AS (
            SELECT bidder, date_time, coalesce(date_time - lag(date_time) OVER keyed
                >= INTERVAL '10 seconds', true)::INT AS begins
            FROM bids WINDOW keyed AS (PARTITION BY bidder ORDER BY date_time)),
        numbered AS (SELECT bidder, date_time, sum(begins) OVER
            (PARTITION BY bidder ORDER BY date_time) AS session FROM marked)
        SELECT min(date_time) AS window_start, max(date_time) + INTERVAL '10 seconds' AS window_end,
            bidder, count(*) AS bid_count FROM numbered GROUP BY bidder, session""",
    "13": """
        SELECT auction, bidder, price, date_time, value FROM bids
        JOIN (SELECT i AS key, i::VARCHAR AS value FROM range(10000) numbers(i))
        ON auction % 10000 = key""",
    "14": """
        SELECT auction, bidder, price * 0.908::DOUBLE AS price,
            CASE WHEN hour(date_time) BETWEEN 8 AND 18 THEN 'dayTime'
                WHEN hour(date_time) <= 6 OR hour(date_time) >= 20 THEN 'nightTime'
                ELSE 'otherTime' END AS bid_time_type,
            date_time, extra, length(extra) - length(replace(extra, 'c', '')) AS c_counts
        FROM bids WHERE price * 0.908::DOUBLE > 1000000 AND price * 0.908::DOUBLE < 50000000""",
    "15": f"SELECT {_DAY}, {_statistics('bids', 'bidders', 'auctions')} FROM bids GROUP BY ALL",
    "16": f"""SELECT {_DAY}, channel, max(date_time) AS last_bid,
        {_statistics("bids", "bidders", "auctions")} FROM bids GROUP BY ALL""",
    "17": f"""SELECT {_DAY}, auction, {_statistics("bids")}, min(price) AS min_price,
        max(price) AS max_price, sum(price)::DOUBLE / count(*) AS avg_price,
        sum(price)::BIGINT AS sum_price FROM bids GROUP BY ALL""",
    "18": """SELECT * EXCLUDE arrival FROM bids
        QUALIFY row_number() OVER (PARTITION BY bidder, auction ORDER BY date_time DESC) = 1""",
    "19": """SELECT * EXCLUDE arrival FROM bids QUALIFY row_number()
        OVER (PARTITION BY auction ORDER BY price DESC, arrival) <= 10""",
    "20": """
        SELECT auction, bidder, price, channel, url, bids.date_time, bids.extra, id, item_name,
            description, initial_bid, reserve, auctions.date_time AS auction_time, expires, seller,
            category, auctions.extra AS auction_extra
        FROM bids JOIN auctions ON auction = id WHERE category = 10""",
}
"""The name of a query → its SQL, with the columns in the order of the query's result."""


def answer(query: str, streams: Mapping[str, pa.Table]) -> pa.Table:
    """Return the result of a query, by DuckDB; the rows of the streams come in their order."""
    with duckdb.connect() as connection:
        for name, table in streams.items():
            arrival = np.arange(table.num_rows)
            connection.register(name, table.append_column("arrival", pa.array(arrival)))
        return connection.sql(SQL[query]).to_arrow_table()
