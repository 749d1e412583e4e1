"""What is counted while a job runs: by instance, operator, edge, and link between hosts."""
