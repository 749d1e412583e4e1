"""Planning: the logical plan of a topology, its physical plan, and the explanation of both."""
