"""NEXMark: queries over the persons, auctions and bids of an auction site.

`generator` makes the three streams, `inputs` offers them (or a user's files) to the queries, which
are one module each in `queries`; `command` runs one of them.
"""
