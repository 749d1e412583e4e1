"""What runs a stage's rows in a worker: all that lies between edge readers and edge writers.

A stage task is one instance of one stage: its operators are nodes, fused by plain calls. Nothing
here knows of processes, sockets or Ray.
"""
