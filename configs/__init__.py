"""All tunables as frozen, typed settings, and every error that whale-ray raises on purpose."""
