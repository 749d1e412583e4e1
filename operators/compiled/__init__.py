"""Filters and projections by expressions as one compiled loop.

::

    steps            the operators that a loop can hold, and what each of them does to a row
    loop_text        a chain of them for rows of one schema, as the text of a function
    compiled_chain   the loops of a chain, compiled; batches in, batches out
"""
