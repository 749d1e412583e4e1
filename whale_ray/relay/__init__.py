"""A relay: one per host, it brings other hosts' streams to its workers and forwards them.

Each stream has a multicast tree over the hosts; a `MulticastStream` is this host's vertex of the
tree with the stream's bytes. `control` decides when a tree changes, `multicast` how.
"""
