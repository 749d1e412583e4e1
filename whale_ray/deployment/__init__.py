"""Where workers and relays live: in the calling process, in plain processes, or as Ray actors.

Each way is a `Fleet` (control/fleet.py); the worker's loop and the controller are the same in all.
"""
