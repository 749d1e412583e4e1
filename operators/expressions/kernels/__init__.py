"""The kernels behind column expressions: functions on Arrow arrays, found by name.

`"arithmetic.add"` is `add` in `arithmetic.py`. A kernel gets its arguments as arrays of one length
or, where they are constant, as scalars; at least one is an array. After them come the call's
options. It returns an array of that length.
"""
