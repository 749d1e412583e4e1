"""The read-only benchmark (RO) of Slash's evaluation: how often each key occurs.

`generator` draws the keys; `topology` counts them; `command` runs it.
"""
