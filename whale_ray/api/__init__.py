"""The entry points of a user's program: `Topology`, `run` and `submit`, and the `Job` they return.

Users import them from the package: `whale_ray.Topology`, `whale_ray.run` and so on. Sources, sinks,
functions and transports have modules of their own beside this folder.
"""
