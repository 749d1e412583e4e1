"""Relays exchange the watermarks of their hosts' sources, so that all sources stay aligned.

Each host has a board with one watermark per source of every host. The host's own sources write
theirs themselves; its relay writes those of other hosts, which their relays send.
"""

from __future__ import annotations

import struct
from typing import Final

from ..plan.hosts import host_name
from ..transport.channel import Outcome
from ..transport.doorbell import NO_WATERMARK_NS, DoorbellBoard
from ..transport.tcp.endpoint import TcpEndpoint

WATERMARK_POLL_NS: Final = 5_000_000
"""How often a relay reads the watermarks of its host's sources, which ring no doorbell for it."""

SHARE_INTERVAL_NS: Final = 1_000_000
"""The time between two reads of the watermarks while bytes flow."""

TAG: Final = b"W"
"""The first byte of a control message with watermarks."""

_WATERMARK: Final = struct.Struct("<Iq")


class WatermarkExchange:
    """One host's part; `slot_hosts` has the host of each source with a watermark, by slot."""

    def __init__(
        self, board: DoorbellBoard, endpoint: TcpEndpoint, slot_hosts: tuple[int, ...], host: int
    ) -> None:
        self._board = board
        self._endpoint = endpoint
        self._slot_hosts = slot_hosts
        self._host = host
        self._mine = [slot for slot, of in enumerate(slot_hosts) if of == host]
        self._others = sorted(set(slot_hosts) - {host})
        self._shared: dict[tuple[int, int], int] = {}
        self._share_at_ns = 0

    @property
    def is_needed(self) -> bool:
        """Whether sources of several hosts are to be aligned."""
        return len(set(self._slot_hosts)) > 1

    @property
    def parents(self) -> set[int]:
        """The hosts to keep a link up to: there may be no stream between hosts with sources."""
        return {host for host in self._others if host < self._host} if self._mine else set()

    def share(self, now_ns: int) -> None:
        """Send changed watermarks of this host to the other hosts with sources, if it is time."""
        if now_ns < self._share_at_ns or not self._mine:
            return
        self._share_at_ns = now_ns + SHARE_INTERVAL_NS
        mine = {slot: self._board.watermark(slot) for slot in self._mine}
        for host in self._others:
            news = {
                slot: watermark_ns
                for slot, watermark_ns in mine.items()
                if watermark_ns != self._shared.get((host, slot), NO_WATERMARK_NS)
            }
            if news:
                packed = TAG + b"".join(_WATERMARK.pack(*item) for item in news.items())
                if self._endpoint.send_control(host_name(host), packed) is Outcome.SENT:
                    self._shared.update({(host, slot): at for slot, at in news.items()})

    def forget(self, host: int) -> None:
        """Send all watermarks to `host` again: its relay is a new process."""
        self._shared = {(of, slot): at for (of, slot), at in self._shared.items() if of != host}

    def receive(self, host: str, packed: bytes) -> bool:
        """Write a host's watermarks (without tag) to the board; False unless all are its own."""
        if len(packed) % _WATERMARK.size:
            return False
        news = list(_WATERMARK.iter_unpack(packed))
        known = len(self._slot_hosts)
        if any(s >= known or host_name(self._slot_hosts[s]) != host for s, _ in news):
            return False
        for slot, watermark_ns in news:
            self._board.set_watermark(slot, watermark_ns)
        return True
