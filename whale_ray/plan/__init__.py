"""From what the user wrote to what each worker runs: logical plan, physical plan, explanation."""
