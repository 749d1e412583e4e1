"""The settings, frozen and typed, and the exceptions that whale-ray raises on purpose."""
