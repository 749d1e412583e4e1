"""Filters and projections by expressions, and table joins, as one compiled loop.

::

    table_lookup     a table join as a step of a loop
    loop_text        a chain of them for rows of one schema, as the text of a function
    loop_function    machine code that may not be there yet
    compiled_chain   the loops of a chain, compiled; batches in, batches out
"""
