"""A worker: its loop over tasks and rings, and the doorbells that it sleeps on."""
