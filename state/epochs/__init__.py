"""Epochs: consistent snapshots of a running job, and what a restart goes on from."""
