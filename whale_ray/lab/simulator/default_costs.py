"""Default costs of the simulation: measured ones, and the published constants."""

from __future__ import annotations

from .costs import LinearCost, MachineCosts

MEASURED = MachineCosts(
    machine="AMD EPYC, 2 cores, Linux 6.18.44-fc-v509 x86_64, Python 3.11.7, busy, 2026-11-21",
    serialize=LinearCost(4.68e-5, 1.56e-10),
    encode=LinearCost(2.27e-6, 1.02e-11),
    send=LinearCost(1.0e-7, 1.14e-10),
    receive=LinearCost(2.44e-6, 9.97e-11),
    process=LinearCost(5.23e-5, 2.16e-10),
    turn_s=8.01e-5,
    wake_s=9.16e-5,
    settle_s=2.34e-4,
    worker_wake_s=3.03e-4,
    delay_s=0.0,
    control_s=4.1e-5,
)
"""By `whale-ray simulate --calibrate`; it can be repeated on any machine."""

PUBLISHED = MachineCosts(
    machine="t_e = 5.2 µs per tuple, the constant in the authors' published code",
    serialize=LinearCost(0.0),
    encode=LinearCost(0.0),
    send=LinearCost(5.2e-6),
    receive=LinearCost(0.0),
    process=LinearCost(0.0),
    turn_s=0.0,
    wake_s=0.0,
    settle_s=0.0,
    worker_wake_s=0.0,
    delay_s=0.0,
    control_s=1e-3,
    per_tuple=True,
)
"""Whale's own model and nothing else: a tuple is a slice, and a child takes t_e."""
