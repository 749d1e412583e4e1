"""The kernels once more, as code for a compiled loop: one emitter per kernel, found by its name.

`"arithmetic.add"` is `add` in `kernels/arithmetic.py`, which computes whole arrays, and `add` in
`emitters/arithmetic.py`, which writes what a loop computes for one row. An emitter gets a
`LoopWriter`, then its arguments as `Code`, then the call's options. Types are chosen by the same
rules (`kernels.type_rules`, `kernels.coercion`), and results are equal bit by bit; a call without
an emitter, or one that raises `NotCompilable`, is left to the kernels.

From the bottom up::

    code                                                    what a loop computes for a row
    conversions                                             implicit casts to a common type
    arithmetic, comparisons, conditionals, casts, numbers   the emitters themselves
    text, times, user_functions                             more of them
    trees                                                   code for whole expressions
"""
