"""Peers: other systems that send every tuple to many instances, measured like whale-ray.

`python -m whale_ray.lab.bench.peers NAME --instances 480` measures one, without NAME lists all.
"""

from __future__ import annotations

from .base import NOT_INSTALLED, PeerResult, PeerSystem

__all__ = ["NOT_INSTALLED", "PeerResult", "PeerSystem", "all_peers", "available"]


def all_peers() -> list[PeerSystem]:
    """Return every peer, installed or not."""
    from . import flink, openmpi, ray_actors, zeromq

    return [
        zeromq.ZeroMqFanOut(),
        zeromq.ZeroMqPush(),
        zeromq.ZeroMqPublish(),
        ray_actors.RayActors(),
        openmpi.OpenMpi(),
        openmpi.OpenMpiUntouched(),
        flink.Flink(),
    ]


def available() -> list[PeerSystem]:
    """Return the peers that can run here; `make peers` installs the others."""
    return [peer for peer in all_peers() if peer.missing() is None]
