"""Aggregate functions: values that name what is computed, and accumulators that compute it."""
