"""Look rows up in a table: every trade with the company of its symbol, if it is known.

The table is read to its end before the first trade, and every worker keeps all of it.

Run it by `python examples/table_lookup.py [TRADES.csv COMPANIES.csv]`.
"""

import sys
from pathlib import Path

import whale_ray as whale

DATA = Path(__file__).parent / "data"


def main(trades=DATA / "trades.csv", companies=DATA / "companies.csv"):
    topology = whale.Topology("table-lookup")
    trade = topology.source(whale.sources.csv(trades), id="trades")
    named = trade.join_table(whale.sources.csv(companies), on="symbol", how="left", id="named")
    named.sink(whale.sinks.collect(), id="out")
    print(whale.run(topology).results("out").to_pandas().to_csv(index=False), end="")


if __name__ == "__main__":
    main(*sys.argv[1:])
