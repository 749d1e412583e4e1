"""Stock exchange: matches orders in order books, and adds up the trading volume.

Every order is broadcast to all matching instances; the one that owns its symbol matches it against
the order book in price-time priority. The fills are partitioned by symbol over the instances that
add up the trading volume.

The modules, in the order of the data: `generator` (or real files → `prepare`, with `rebuilding`) →
`topology` with `splitting`, the operator in `matcher` and the windows in `volume` → `report`. The
matcher calls compiled loops: `matching` (`records`, `book_kernels`) and `texts`.
"""
