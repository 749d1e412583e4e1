"""Whole clusters on one thread in virtual time, for state machines that do no I/O of their own.

A run follows from its seed alone: the same seed gives the same events in the same order, on every
machine. Nothing is imported here; import the module you need.
"""
