"""RDMA verbs: links between hosts whose bytes travel over reliable-connected queue pairs."""
