"""Epochs: consistent snapshots of a running job, and what a restart resumes from."""
