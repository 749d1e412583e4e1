"""A worker: the loop that turns its tasks, its rings, and the doorbells it sleeps on."""
