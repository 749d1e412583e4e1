"""Connections to Ray clusters, and Ray Datasets as sources and sinks.

The actors that run a job are in `whale_ray.deployment.on_ray`. Nothing in this package imports ray
before it is used.
"""

from .dataset import RayDatasetResult, ray_dataset_sink, ray_dataset_source, to_ray_dataset
from .session import RaySession, connect_ray

__all__ = [
    "RayDatasetResult",
    "RaySession",
    "connect_ray",
    "ray_dataset_sink",
    "ray_dataset_source",
    "to_ray_dataset",
]
