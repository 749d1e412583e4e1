"""How bytes move: rings in shared memory, channels over them, doorbells, slicing.

Nothing is imported here, so that `import whale_ray` stays light; import the module you need.
"""
