"""Applications from the papers: topologies that a newcomer runs, reads and copies."""
