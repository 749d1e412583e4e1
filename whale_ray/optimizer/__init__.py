"""The optimizer: degrees of parallelism and batch sizes from measured costs (Aeolus)."""
