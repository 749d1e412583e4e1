"""Cluster monitoring: the mean CPU of each job of a cluster, in windows.

The modules, in the order of the data: `generator` (or files: `inputs`) → `replay`, which lets every
job have the CPU samples of a task → `topology`; `command` runs it.
"""
