"""One stream to many hosts: the self-adjusting non-blocking multicast tree, as pure values.

Nothing here does I/O, reads a clock or draws a random number: the runtime drives it, and so does
the simulator (Whale, sections 3 and 4).
"""
