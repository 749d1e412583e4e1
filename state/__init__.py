"""State of operators: by key, rows that wait for event time, watermarks."""
