"""How much is under way ahead of its turn: bounded, and asked for in bursts.

Over pretended devices that are slow: requests stay under way for many polls.
"""

from __future__ import annotations

import pytest

from tests.transport.links import Source
from tests.transport.test_tcp_endpoint import star
from tests.transport.verbs.conftest import machine_of
from whale_ray.transport.links.link import Link
from whale_ray.transport.links.link_header import FRAME_ALIGNMENT
from whale_ray.transport.verbs import payload_reader, payload_sender
from whale_ray.transport.verbs.frames import FRAME_HEADER_BYTES, WRITTEN
from whale_ray.transport.verbs.payload_reader import PayloadReader
from whale_ray.transport.verbs.payload_sender import Decision, PayloadSender
from whale_ray.transport.verbs.send_queue import SendQueue

AHEAD_BYTES = 16 << 10
FRAME_BYTES_MAX = 5000
MESSAGE_BYTES_MAX = FRAME_BYTES_MAX + 2 * FRAME_ALIGNMENT
pytestmark = pytest.mark.usefixtures("no_leaks")


def carry(data: str) -> None:
    """Let streams pass whose messages are of a few frames each: several of them take turns."""
    hosts = machine_of("slow").hosts(verbs_data=data)
    star(hosts, "child")
    sources = [Source(200, lambda number: number * 37 % FRAME_BYTES_MAX) for _ in range(3)]
    targets = [
        hosts.stream(source, "parent", ["child"], number)[0]
        for number, source in enumerate(sources)
    ]
    steps = [one.step for one in (*sources, *targets)]
    hosts.until(lambda: all(target.over for target in targets), *steps)
    assert [target.received for target in targets] == [source.all for source in sources]
    while hosts.poll(20):
        pass
    hosts.close()


def test_reads_are_asked_for_in_bursts_and_bounded(monkeypatch):
    bursts: list[tuple[int, int]] = []
    read_ahead = PayloadReader.read_ahead

    def watched(reader: PayloadReader, link: Link) -> bool:
        before = reader._bytes
        asked = read_ahead(reader, link)
        if asked:
            bursts.append((before, reader._bytes))
        return asked

    monkeypatch.setattr(payload_reader, "_AHEAD_BYTES", AHEAD_BYTES)
    monkeypatch.setattr(payload_reader, "_REFILL_BYTES", AHEAD_BYTES // 2)
    monkeypatch.setattr(PayloadReader, "read_ahead", watched)
    monkeypatch.setattr("whale_ray.transport.links.turns.SLICE_BYTES", 1 << 12)
    monkeypatch.setattr("whale_ray.transport.verbs.connection.SLICE_BYTES", 1 << 12)
    carry("read")
    assert max(before for before, _ in bursts) <= AHEAD_BYTES // 2
    most = max(after for _, after in bursts)
    assert AHEAD_BYTES // 2 < most < AHEAD_BYTES + MESSAGE_BYTES_MAX
    assert any(before > 0 for before, _ in bursts), "while others were under way"


def test_writes_are_bounded_and_all_are_accounted_for(monkeypatch):
    senders: set[PayloadSender] = set()
    before_writes: list[int] = []
    decide = PayloadSender.decide

    def watched(
        sender: PayloadSender, link: Link, stream: int, start: int, nbytes: int, number: int
    ) -> Decision:
        before = sender._bytes
        decision = decide(sender, link, stream, start, nbytes, number)
        if decision == WRITTEN:
            senders.add(sender)
            before_writes.append(before)
            assert sender._bytes == before + nbytes
        return decision

    monkeypatch.setattr(payload_sender, "_AHEAD_BYTES", AHEAD_BYTES)
    monkeypatch.setattr(PayloadSender, "decide", watched)
    monkeypatch.setattr("whale_ray.transport.links.turns.SLICE_BYTES", 1 << 12)
    carry("write")
    assert max(before_writes) < AHEAD_BYTES
    (sender,) = senders
    assert sender._bytes == 0


@pytest.mark.parametrize("data", ["read", "write", "send"])
def test_empty_frames_are_sent_only_to_return_credits(monkeypatch, data):
    sizes: list[int] = []
    send, send_credits = SendQueue._send, SendQueue.send_credits

    def watched(send_queue: SendQueue) -> None:
        sizes.append(send_queue._at)
        send(send_queue)

    def released(send_queue: SendQueue) -> bool:
        before = len(sizes)
        given = send_credits(send_queue)
        del sizes[before:]
        return given

    monkeypatch.setattr(payload_sender, "_AHEAD_BYTES", AHEAD_BYTES)
    monkeypatch.setattr(SendQueue, "_send", watched)
    monkeypatch.setattr(SendQueue, "send_credits", released)
    monkeypatch.setattr("whale_ray.transport.links.turns.SLICE_BYTES", 1 << 12)
    carry(data)
    assert min(sizes) > FRAME_HEADER_BYTES
