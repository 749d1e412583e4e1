"""What a tuple meets on its way: sources, transforms, groupings, processes, sinks.

Nothing is imported here, so that building a topology stays light: `groupings`, `process` and the
construction of expressions need neither numba nor pyarrow; the rest loads them when a row arrives.
"""
