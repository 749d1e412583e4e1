"""Links over TCP."""
