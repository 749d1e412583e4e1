"""Measures what a topology's operators cost, and applies what the optimizer makes of it."""
