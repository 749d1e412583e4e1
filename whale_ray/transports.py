"""Transports of your own: how rows go from one process to another, as a pair of operators.

Derive a `Sender` and a `Receiver`, name the pair as a `Transport`, and give that to a topology, or
with `via` to one stream. The classes say what they must do.
"""

from __future__ import annotations

from .transport.custom.operators import Receiver, Sender, Transport, TransportContext

__all__ = ["Receiver", "Sender", "Transport", "TransportContext"]
