"""What a job remembers: event-time order, watermarks and, later, keyed state of any size."""
