"""Stock exchange: matches orders in order books, and adds up the trading volume.

Every order is broadcast to all matching instances; the one that owns its symbol matches it against
the order book in price-time priority. The fills are partitioned by symbol over the instances that
add up the trading volume.

The modules, in the order of the data: `generator` (or real files → `prepare`, with `rebuilding`) →
`topology` with `splitting` and the operators in `matcher` and `volume` → `application` (the
report). The operators call compiled loops: `matching` (`records`, `book_kernels`) and
`volume_kernels`; both use `texts`.
"""
