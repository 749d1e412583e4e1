"""Transports of your own, which send rows from one process to another by a pair of operators.

Derive a `Sender` and a `Receiver`, combine them as a `Transport`, and pass it to a `Topology`, or
to the method `via` of one stream. The classes document the methods to define.
"""

from __future__ import annotations

from .transport.custom.operators import Receiver, Sender, Transport, TransportContext

__all__ = ["Receiver", "Sender", "Transport", "TransportContext"]
