"""Batches, messages and their wire format.

`types` needs numpy alone, batches need numba; Arrow comes last.
"""
