"""State of operators: the event-time buffer, its spill files, watermarks."""
