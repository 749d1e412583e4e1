"""NB7, NB8 and NB11: NEXMark as the evaluation of Slash has it (Del Monte's thesis, 4.7.1.2).

They differ from queries 7, 8 and 11 of `nexmark`: other windows, a join instead of a count, and
records of 206, 269 and 32 bytes. `generator` makes the streams; `queries` are the topologies;
`command` runs them.
"""
