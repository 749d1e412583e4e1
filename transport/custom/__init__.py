"""Custom transports, which users write: a sender and a receiver operator (Vega III).

Nothing is imported here, so that `import whale_ray` stays light; import the module you need.
"""
