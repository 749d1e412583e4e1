"""Ray around a topology: joining or starting it, and Ray Datasets in and out.

Only sessions and data live here; the actors that run a job are in `whale_ray.control`. Nothing in
here imports ray before it is used.
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
