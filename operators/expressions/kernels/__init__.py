"""The kernels behind column expressions: functions on Arrow arrays, found by name.

`"arithmetic.add"` is `add` in `arithmetic.py`. A kernel gets its arguments as arrays of one length
or, where they are constant, as scalars; at least one is an array. After them come the call's
options. It returns an array of that length.

From the bottom up, each module importing only those before it::

    type_rules                    kinds of types, and the common type of two
    arrays                        Arrow arrays to numpy and back
    calendar, zones               the Gregorian calendar; the clocks of time zones
    decimals, timestamp_casts     exact decimals; timestamps between units, zones and dates
    time_texts, casts             times from and to text; all explicit casts
    coercion                      implicit casts to a common type
    intervals                     times plus and minus durations
    arithmetic, comparisons, conditionals, numbers, text, times     the kernels themselves
"""
