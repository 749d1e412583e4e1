"""Options market: reads trades of options from feeds, and decides what to buy and sell.

Vega's application (OMDP): feed handlers parse the messages of their lines, decision engines keep
the state of every contract, a metrics collector receives the decisions and timestamps them.
Messages arrive on a line at their own times, whether or not the handler keeps up; a message that
finds the line's buffer full is lost and counted.

The modules, in the order of the data: `generated` or real files → `prepare` → `contracts` →
`topology` with `lines` (`line_kernels` simulate their senders), `handlers`, `engines` (with
`engine_kernels`), `collector` → `report`. `placements` maps the stages to workers; `messages`
defines the message format. The command has its run measured by `lab.bench.options_market`.
"""
