"""Benchmarks: `whale-ray bench SUITE`; each module here that has a `run` is a suite.

A suite measures what it compares in one run, on one machine, and reports ratios (report.py).
Benchmarks are not tests: they have aims, but nothing fails when one is missed.
"""
