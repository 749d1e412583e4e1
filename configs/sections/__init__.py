"""The declarations of all settings, one module per section."""
