"""Runs a planned topology: workers, the controller that leads them, and where they live.

The worker loop and the controller know nothing of Ray. A `Fleet` wraps the workers three ways: in
the calling process, in plain processes, and as Ray actors.
"""
