"""Stock exchange: orders meet the order books, and what is traded is added up.

Every order goes to all matching instances; the one that owns its symbol matches it with the book in
price-time priority. The fills go on by symbol to the instances that add up the trading volume.

Data flows through the modules in this order: `generator` (or real files → `prepare`, with
`rebuilding`) → `topology` with `splitting`, `matcher` and `volume` → `application` (what is
reported). `reference` is the exchange in plain Python, to check against. Below the two operators
lie compiled loops: `matching` (`records`, `book_kernels`) and `volume_kernels`; `texts` is shared.
"""
