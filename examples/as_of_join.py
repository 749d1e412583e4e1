"""Join two streams by event time: every trade with the latest quote of its symbol before it.

Rows of both inputs arrive in event-time order, however they were read; at equal times the left
input comes first. So the operator keeps the latest price of each symbol, and needs no buffer of its
own. `trades.join_asof(quotes, by="symbol")` does the same; this shows how to write such a join.

Run it by `python examples/as_of_join.py [QUOTES.csv TRADES.csv]`.
"""

import sys
from pathlib import Path

import whale_ray as whale
from whale_ray import state

DATA = Path(__file__).parent / "data"


class Join(whale.KeyedCoProcess):
    """Left: quotes. Right: trades. Both keyed by symbol."""

    price = state.value("float64")

    def on_left_row(self, quote, out):
        self.price.set(quote.price)

    def on_right_row(self, trade, out):
        if self.price.exists:
            value = trade.quantity * self.price.get()
            out.emit_row(time=trade.time, symbol=trade.symbol, value=value)


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
