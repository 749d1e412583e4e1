"""The control plane: what leads a job's workers and relays.

`controller` decides on attempts and their steps, `tree_controller` on the multicast trees, both as
pure state machines. `supervisor` carries out what they decide, on a `Fleet`: the same for every
deployment.
"""
