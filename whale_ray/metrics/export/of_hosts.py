"""The metrics of workers and relays, and of what carries rows between hosts."""

from __future__ import annotations

from collections.abc import Iterator

from .metric import Group, JobStatus, Metric, Subject, counter


def _workers(job: JobStatus) -> Iterator[Subject]:
    for member in job.metrics.members:
        if not member.host:
            yield Subject((str(member.worker),), member)


def _relays(job: JobStatus) -> Iterator[Subject]:
    for member in job.metrics.members:
        if member.host:
            yield Subject((member.host,), member)


def _links(job: JobStatus) -> Iterator[Subject]:
    for relay in job.metrics.relays:
        for link in relay.links:
            yield Subject((relay.host, link.host), link)


def _transports(job: JobStatus) -> Iterator[Subject]:
    for member in job.metrics.members:
        for one in member.transports:
            role = "receiver" if one.sender is None else "sender"
            labels = (one.transport, str(one.edge), role, str(member.worker))
            yield Subject(labels, one, member.attempt, f"{one.stream} to {one.receiver}")


WORKERS = Group(
    "Workers",
    ("worker",),
    _workers,
    (
        counter(
            "whale_ray_worker_cpu_seconds_total",
            "Processor time of the worker's process.",
            lambda one: one.cpu_ns / 1e9,
            "seconds",
        ),
    ),
)

RELAYS = Group(
    "Relays of hosts",
    ("host",),
    _relays,
    (
        counter(
            "whale_ray_relay_cpu_seconds_total",
            "Processor time of the relay's process.",
            lambda one: one.cpu_ns / 1e9,
            "seconds",
        ),
        counter(
            "whale_ray_relay_refused_connections_total",
            "Connections refused before they said who they are.",
            lambda one: one.refused,
            by="reason",
        ),
    ),
)

LINKS = Group(
    "Links between hosts",
    ("host", "peer"),
    _links,
    (
        Metric("whale_ray_link_up", "1 if a link stands, else 0.", lambda one: int(one.up)),
        counter(
            "whale_ray_link_sent_bytes_total",
            "Bytes of messages sent to the peer, their headers included.",
            lambda one: one.sent_by_carrier,
            "bytes",
            by="carrier",
        ),
        counter(
            "whale_ray_link_received_bytes_total",
            "Bytes of messages received from the peer, their headers included.",
            lambda one: one.received_by_carrier,
            "bytes",
            by="carrier",
        ),
        counter(
            "whale_ray_link_sent_messages_total",
            "Messages of all kinds sent to the peer.",
            lambda one: one.messages_sent,
        ),
        counter(
            "whale_ray_link_received_messages_total",
            "Messages of all kinds received from the peer.",
            lambda one: one.messages_received,
        ),
        counter(
            "whale_ray_link_duplicate_messages_total",
            "Messages that repeated what was there, and were dropped.",
            lambda one: one.duplicates,
        ),
        counter(
            "whale_ray_link_stale_messages_total",
            "Messages of streams that had moved to another parent by then, and were dropped.",
            lambda one: one.stale,
        ),
        counter(
            "whale_ray_link_connections_total",
            "Links that came to stand.",
            lambda one: one.connections,
        ),
        counter(
            "whale_ray_link_failures_total",
            "How often links broke or did not come to stand.",
            lambda one: one.failures,
            by="reason",
        ),
        counter(
            "whale_ray_link_waits_for_reader_total",
            "Times that bytes had to wait for a slow reader of the peer.",
            lambda one: one.back_pressured,
        ),
        counter(
            "whale_ray_link_waits_for_network_total",
            "Times that bytes had to wait for the network.",
            lambda one: one.socket_full,
        ),
        Metric(
            "whale_ray_link_round_trip_seconds",
            "The last measured time there and back; absent before the first.",
            lambda one: one.rtt_ns / 1e9 if one.rtt_ns else None,
            unit="seconds",
        ),
        Metric(
            "whale_ray_link_without_verbs_seconds",
            "For how long RDMA verbs have not carried the link.",
            lambda one: one.without_verbs_ns / 1e9,
            unit="seconds",
        ),
    ),
)


def _switched(job: JobStatus) -> Iterator[Subject]:
    """Yield the last switch of each stream's tree that was not aborted."""
    last = {str(one.stream): one for one in job.metrics.switches if not one.aborted}
    for stream, switch in last.items():
        yield Subject((stream,), switch)


def _throttled(job: JobStatus) -> Iterator[Subject]:
    for stream, rate in job.metrics.throttled.items():
        yield Subject((str(stream),), rate)


TREES = Group(
    "Multicast trees that have switched",
    ("stream",),
    _switched,
    (
        Metric(
            "whale_ray_multicast_out_degree",
            "The highest out-degree of a stream's tree since its last switch.",
            lambda one: one.degree_after,
        ),
        Metric(
            "whale_ray_multicast_tree_epoch",
            "Number of a stream's tree; grows with each switch.",
            lambda one: one.epoch,
        ),
    ),
)

THROTTLED = Group(
    "Streams whose load no tree can carry",
    ("stream",),
    _throttled,
    (
        Metric(
            "whale_ray_multicast_throttled_slices_per_second",
            "How much of a stream's load can be carried.",
            lambda rate: rate,
        ),
    ),
)

TRANSPORTS = Group(
    "Transports of your own",
    ("transport", "edge", "role", "worker"),
    _transports,
    (
        counter(
            "whale_ray_transport_messages_total",
            "Messages carried.",
            lambda one: one.messages,
        ),
        counter(
            "whale_ray_transport_payload_bytes_total",
            "Bytes of their payloads.",
            lambda one: one.counters.payload_bytes,
            "bytes",
        ),
        counter(
            "whale_ray_transport_back_pressured_total",
            "Times that a message found no room.",
            lambda one: one.counters.back_pressured,
        ),
        counter(
            "whale_ray_transport_stale_messages_total",
            "Messages of earlier attempts, which were dropped.",
            lambda one: one.stale,
        ),
        counter(
            "whale_ray_transport_busy_seconds_total",
            "Time in the operator's own code.",
            lambda one: one.busy_ns / 1e9,
            "seconds",
        ),
        Metric(
            "whale_ray_transport_reported",
            "What the operator counts itself.",
            lambda one: one.own,
            by="figure",
        ),
    ),
)
