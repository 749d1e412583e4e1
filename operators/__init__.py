"""Operators: sources, transforms, groupings, keys, processes, sinks.

Nothing is imported here, so that building a topology is cheap: `groupings`, `process` and building
`expressions` need neither numba nor pyarrow; everything else imports them when a row arrives.
"""
