"""Where members run: in the calling process, in plain processes, or as Ray actors.

Each of these is a `Fleet` (control/fleet.py); workers, relays and controller are the same in all.
"""
