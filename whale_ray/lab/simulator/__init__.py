"""How fast one stream reaches many hosts: a performance model in virtual time.

The model works with slices, not bytes. What a slice costs each host is measured once
(calibration.py); a run then simulates the arrival of slices, the queues, the tree and its switches.
A run follows from its seed; only calibration and validation, which measure the real runtime, read a
real clock.
"""
