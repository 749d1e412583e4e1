"""Column expressions: building them, their functions, and computing them over batches.

`expression` and `functions` build without numpy or pyarrow; `evaluation` and `kernels` compute.
"""
