"""The laboratory: benchmarks and the performance simulator. The engine imports none of it."""
