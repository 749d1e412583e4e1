"""Filters and projections by expressions, and table joins, as one compiled loop.

::

    table_lookup     a table join as a step of a loop
    loop_outputs     where each column that comes out of a loop comes from
    loop_text        a chain of them for rows of one schema, as the text of a function
    loop_function    machine code that may not be there yet
    loop_arguments   the arrays that a loop reads, and their types
    chain_loops      the loops of a chain, of which each batch takes the one that fits it
    compiled_chain   chains from batches to batches
    aggregating_text, aggregating_chain   chains that end in a partial aggregate, likewise
    slice_lines      how such a loop tells slices of time
"""
