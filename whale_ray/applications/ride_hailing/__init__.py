"""Ride-hailing: every passenger request finds the best free vehicle nearby.

Drivers' positions go by vehicle to the matching instances, which keep them; every request goes to
all instances; each returns its free vehicles within a radius; an aggregation chooses the nearest.

Data flows through the modules in this order: `generator` or real files → `prepare` (rules in
`cleaning`) → `topology` with `matcher` and `best` → `application` (what is reported). `oracle` asks
the same question in one SQL query. Below the two operators lie compiled loops: `matching`
(`vehicles`, `slot_kernels`, `matcher_kernels`) and `best_kernels`.
"""
