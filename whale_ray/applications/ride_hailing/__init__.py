"""Ride-hailing: finds the nearest free vehicle for every passenger request.

Positions are partitioned by vehicle over the matching instances, which keep the latest one of each
vehicle. Every request is broadcast to all of them, and each returns its free vehicles within a
radius. An aggregation chooses the nearest.

The modules, in the order of the data: `generator` or real files → `prepare` (rules in `cleaning`) →
`topology` with the operators in `matcher` and `best` → `report`. The operators
call compiled loops: `matching` (`vehicles`, `slot_kernels`, `matcher_kernels`) and `best_kernels`.
"""
