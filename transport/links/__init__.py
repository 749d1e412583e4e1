"""Links between hosts: who the peer is, what is sent next, what outlives a cut."""
