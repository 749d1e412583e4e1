"""whale_ray.applications."""
