"""Processes with declared state: one logical instance per key."""
