"""Options market: trades of options come over feeds, and decisions to buy or sell go out.

Vega's application (OMDP): feed handlers parse the messages of their lines, decision engines keep
the state of every contract, a metrics collector receives the decisions and dates them. Lines keep
to their own time, whether anybody listens or not; what finds no room is missed, and counted.

Data flows through the modules in this order: `generated` or real files → `prepare` → `contracts` →
`topology` with `lines` (the market's side: `market_kernels`), `handlers`, `engines`, `collector` →
`measuring` (the latency stage by stage) → `application` (what is reported). `placements` says what
runs where. `highest_rate` searches the rate that a placement can just carry. The format of the
messages stands in `messages`.
"""
