"""How fast one stream reaches many hosts: a performance model in virtual time.

Slices, not bytes: what a slice costs each host is measured once (calibration.py), and a run plays
the arrival of slices, the queues, the tree and its switches. A run follows from its seed; nothing
reads a real clock but the calibration and the validation, which measure the real runtime.
"""
