"""Join two streams by event time: every trade with the latest quote of its symbol before it.

Rows of both inputs arrive in event-time order, however they were read; at equal times the left
input comes first. So the operator keeps the latest quote, and needs no buffer of its own.
`trades.join_asof(quotes, by="symbol")` does the same; this shows how to write such a join.

Run it by `python examples/as_of_join.py [QUOTES.csv TRADES.csv]`.
"""

import sys
from pathlib import Path

import whale_ray as whale

DATA = Path(__file__).parent / "data"


class Join(whale.CoProcess):
    """Left: quotes. Right: trades. Both keyed by symbol."""

    def open(self, context):
        self.prices = {}

    def on_left_row(self, quote, out):
        self.prices[quote.symbol] = quote.price

    def on_right_row(self, trade, out):
        price = self.prices.get(trade.symbol)
        if price is not None:
            out.emit_row(time=trade.time, symbol=trade.symbol, value=trade.quantity * price)


def main(quotes=DATA / "quotes.csv", trades=DATA / "trades.csv"):
    topology = whale.Topology("as-of-join")
    left = topology.source(whale.sources.csv(quotes), id="quotes", event_time="time")
    right = topology.source(whale.sources.csv(trades), id="trades", event_time="time")
    joined = left.key_by("symbol").connect(right.key_by("symbol"))
    joined.process(Join, id="join", parallelism=2).sink(whale.sinks.collect(), id="out")
    frame = whale.run(topology).results("out").to_pandas().sort_values(["time", "symbol"])
    print(frame.to_string(index=False))


if __name__ == "__main__":
    main(*sys.argv[1:])
