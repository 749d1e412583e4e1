"""Epochs: consistent snapshots of a running job, and what a restart goes on from.

Pure: no input or output, no clock. The workers' loop does not use them yet.
"""
