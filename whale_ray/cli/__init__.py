"""The command `whale-ray`."""
