"""What a user's program calls: `Topology`, `run` and `submit`, and the `Job` that these return.

Public names are reached as `whale_ray.Topology`, `whale_ray.run` and so on. Sources, sinks,
functions and transports have modules of their own beside this folder.
"""
