"""Kafka: what its source and its sink have in common, and the parts of each."""
