"""A relay: fetches the streams of other hosts for the workers of its own, and passes streams on.

Apart from all user code, in a process of its own: a function that holds its worker's GIL delays
nobody else's tuples, heartbeats or acknowledgements (DESIGN 3). It takes a worker's steps::

    open()            ·
    link(boards)      make the mirrors of other hosts' rings; listen
    connect(offers)   tap the rings that other hosts read; know where the parents listen
    run()             move bytes until all workers have ended
    stage(), close()  give everything back

The bytes are `TcpEndpoint`'s matter. Here is decided which streams come from where and go where,
and relays tell each other the watermarks of their hosts' sources, on which all are aligned.
"""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass, field

from ..configs.errors import AttemptLostError
from ..configs.settings import Settings
from ..plan.hosts import host_name
from ..plan.streams import RingSpec, StreamPlan
from ..transport.channel import Outcome
from ..transport.clock import Clock
from ..transport.doorbell import NO_WATERMARK_NS, BoardHandle
from ..transport.links.handshake import Identity
from ..transport.mirror import MirrorRing, RingTap
from ..transport.tcp.endpoint import TcpEndpoint
from .boards import HostBoard
from .metrics import WorkerSnapshot, cpu_time_ns
from .offers import RingOffer

WATERMARK_POLL_NS = 5_000_000
"""How soon a relay looks again at the watermarks of its host's sources; they do not ring for it."""

SHARE_INTERVAL_NS = 1_000_000
"""The time between two looks at them while bytes flow."""

CHECK_INTERVAL_NS = 100_000_000
"""The time between two looks at who cannot be reached."""

_WATERMARK = struct.Struct("<Iq")


@dataclass(frozen=True)
class RelayAssignment:
    """What a relay is told: no part of it comes from the user.

    Attributes:
        job_id: the job's unique id.
        streams: the rings, and who writes and reads them.
        slot_hosts: the host of each source instance that shows a watermark, by its slot.
        settings: all settings.
        secret: what relays prove to each other that they know.
    """

    job_id: str
    streams: StreamPlan
    slot_hosts: tuple[int, ...]
    settings: Settings
    secret: bytes = field(repr=False)


class Relay:
    """Member `member` of a job, for one attempt after the other; listens at `address`.

    The steps and `close` are called from one thread; `abort`, `finish` and `snapshot` from any.
    """

    def __init__(
        self, member: int, assignment: RelayAssignment, clock: Clock, address: str
    ) -> None:
        self._member = member
        self._assignment = assignment
        self._plan = assignment.streams
        self._host = self._plan.host_of(member)
        self._clock = clock
        self._address = address
        self._attempt = -1
        self._aborted = -1
        self._finished = -1
        self._board: HostBoard | None = None
        self._endpoint: TcpEndpoint | None = None
        self._mirrors: dict[int, MirrorRing] = {}
        self._taps: list[RingTap] = []
        self._shared: dict[tuple[int, int], int] = {}
        self._share_at_ns = 0
        self._check_at_ns = 0

    @property
    def name(self) -> str:
        """What messages call it."""
        return f"relay of {host_name(self._host)}"

    @property
    def attempt(self) -> int:
        """The attempt that it is in; −1 before the first."""
        return self._attempt

    def open(self, attempt: int) -> BoardHandle | None:
        """Begin an attempt; whatever an earlier one left is closed."""
        self.close()
        self._attempt = attempt
        slots = len(self._assignment.slot_hosts)
        transport = self._assignment.settings.transport
        self._board = HostBoard(self._plan, transport, self._member, self._job, slots)
        return self._board.make()

    def link(self, attempt: int, boards: tuple[BoardHandle | None, ...]) -> RingOffer:
        """Make the mirrors that this host's workers read, and listen for other hosts."""
        assert self._board is not None, "open() comes first"
        self._board.join(boards)
        offer = RingOffer({})
        for spec in self._mirrored():
            self._mirrors[spec.id] = mirror = self._make_mirror(spec)
            offer.rings[spec.id] = mirror.handle
        assignment = self._assignment
        # No term: links belong to an attempt, whichever controller leads it.
        identity = Identity(assignment.job_id, attempt, 0, host_name(self._host))
        self._endpoint = TcpEndpoint(
            identity,
            assignment.secret,
            assignment.settings.transport,
            self._clock.monotonic_ns,
            random.SystemRandom(),
            self._board.doorbell_of(self._member),
            hosts=self._plan.hosts.names,
        )
        return RingOffer(offer.rings, self._endpoint.listen(self._address))

    def connect(self, attempt: int, offers: tuple[RingOffer, ...]) -> None:
        """Tap the rings that go on to other hosts, and learn where the parents listen."""
        endpoint = self._opened
        for parent in self._parents():
            address = offers[self._plan.relay_of(parent)].address
            assert address is not None, "every relay listens"
            endpoint.dial(host_name(parent), address)
        for spec in self._plan.rings:
            children = self._plan.children_of(spec, self._host)
            if children:
                tap = self._tap(spec, offers)
                self._taps.append(tap)
                endpoint.offer(spec.id, tap, [host_name(child) for child in children])
        for spec in self._mirrored():
            parent = self._plan.parents_of(spec)[self._host]
            endpoint.subscribe(spec.id, self._mirrors[spec.id], host_name(parent))

    def run(self, attempt: int, _connected: tuple[object, ...] = ()) -> WorkerSnapshot:
        """Move bytes until `finish`; return the final counters."""
        endpoint, board = self._opened, self._board
        assert board is not None
        endpoint.watch()
        while self._finished < attempt:
            if self._aborted >= attempt:
                msg = "the attempt was aborted"
                raise AttemptLostError(msg)
            now_ns = self._clock.monotonic_ns()
            moved = endpoint.poll(now_ns)
            moved |= self._take_watermarks()
            self._look_around(now_ns)
            if not moved:
                board.sleep(self._timeout_ns(now_ns), self._has_work)
        return self.snapshot()

    def stage(self, attempt: int, _finals: tuple[object, ...] = ()) -> dict[str, list[object]]:
        """Do nothing: a relay has no output."""
        return {}

    def drain(self, attempt: int) -> None:
        """Do nothing: a relay runs until all workers have ended."""

    def finish(self, attempt: int) -> None:
        """End the run: every worker has everything."""
        self._finished = attempt
        self._wake()

    def abort(self, attempt: int) -> None:
        """End the attempt as soon as the loop gets its turn."""
        self._aborted = attempt
        self._wake()

    def snapshot(self) -> WorkerSnapshot:
        """Return the counters of its links."""
        endpoint = self._endpoint
        return WorkerSnapshot(
            self._member,
            self._clock.monotonic_ns(),
            cpu_time_ns(),
            links=() if endpoint is None else endpoint.statistics(),
            refused={} if endpoint is None else dict(endpoint.refused),
            host=host_name(self._host),
        )

    def close(self) -> None:
        """Give back sockets, rings and the board."""
        if self._endpoint is not None:
            self._endpoint.close()
        for tap in self._taps:
            tap.close()
        for mirror in self._mirrors.values():
            mirror.close()
        if self._board is not None:
            self._board.close()
        self._endpoint, self._board = None, None
        self._taps, self._mirrors, self._shared = [], {}, {}

    @property
    def _job(self) -> str:
        return f"{self._assignment.job_id}-{self._attempt}"

    @property
    def _opened(self) -> TcpEndpoint:
        assert self._endpoint is not None, "link() comes first"
        return self._endpoint

    def _mirrored(self) -> list[RingSpec]:
        """Return the streams of other hosts that workers of this one read."""
        return [spec for spec in self._plan.rings if self._host in self._plan.parents_of(spec)]

    def _make_mirror(self, spec: RingSpec) -> MirrorRing:
        assert self._board is not None
        transport = self._assignment.settings.transport
        readers = self._plan.members_reading(spec, self._host)
        return MirrorRing.create(
            spec.capacity_bytes,
            len(readers),
            self._job,
            f"mirror-{self._host}-{spec.id}",
            [self._board.doorbell_of(reader) for reader in readers if reader != self._member],
            kind=transport.segment_kind,
            poison_released=transport.poison_released,
        )

    def _tap(self, spec: RingSpec, offers: tuple[RingOffer, ...]) -> RingTap:
        place = self._plan.members_reading(spec, self._host).index(self._member)
        if spec.id in self._mirrors:
            return RingTap.of(self._mirrors[spec.id], place)
        assert self._board is not None
        handle = offers[spec.producer_worker].rings[spec.id]
        return RingTap.attach(handle, place, self._board.doorbell_of(spec.producer_worker))

    def _parents(self) -> list[int]:
        """Return the hosts to dial: where streams come from, and lower ones with aligned sources.

        The latter since two hosts may have sources to align but no stream between them.
        """
        found = {self._plan.parents_of(spec)[self._host] for spec in self._mirrored()}
        timed = set(self._assignment.slot_hosts)
        if self._host in timed:
            found |= {host for host in timed if host < self._host}
        return sorted(found)

    def _take_watermarks(self) -> bool:
        """Note how far the sources of other hosts are; return whether anything was told."""
        endpoint, moved = self._opened, False
        while (told := endpoint.receive_control()) is not None:
            moved = True
            host, packed = told
            if not self._note(host, packed):
                endpoint.reject(host, "a control message that makes no sense")
        return moved

    def _note(self, host: str, packed: bytes) -> bool:
        """Put a host's watermarks on the board; False if they are none of its own."""
        assert self._board is not None
        slot_hosts = self._assignment.slot_hosts
        if len(packed) % _WATERMARK.size:
            return False
        news = list(_WATERMARK.iter_unpack(packed))
        if any(s >= len(slot_hosts) or host_name(slot_hosts[s]) != host for s, _ in news):
            return False
        for slot, watermark_ns in news:
            self._board.board.set_watermark(slot, watermark_ns)
        return True

    def _share_watermarks(self) -> None:
        """Tell the other hosts that have sources how far those of this one are."""
        assert self._board is not None
        board, slot_hosts = self._board.board, self._assignment.slot_hosts
        mine = {
            slot: board.watermark(slot)
            for slot, host in enumerate(slot_hosts)
            if host == self._host
        }
        for host in sorted(set(slot_hosts) - {self._host}) if mine else ():
            news = {
                slot: watermark_ns
                for slot, watermark_ns in mine.items()
                if watermark_ns != self._shared.get((host, slot), NO_WATERMARK_NS)
            }
            if news:
                packed = b"".join(_WATERMARK.pack(*item) for item in news.items())
                if self._opened.send_control(host_name(host), packed) is Outcome.SENT:
                    self._shared.update({(host, slot): at for slot, at in news.items()})

    def _look_around(self, now_ns: int) -> None:
        """Do what need not be done in every turn."""
        if now_ns >= self._share_at_ns:
            self._share_at_ns = now_ns + SHARE_INTERVAL_NS
            self._share_watermarks()
        if now_ns >= self._check_at_ns:
            self._check_at_ns = now_ns + CHECK_INTERVAL_NS
            self._check_reachable(now_ns)

    def _check_reachable(self, now_ns: int) -> None:
        limit_ns = self._assignment.settings.runtime.unreachable_after_ms * 1_000_000
        for lost in self._opened.unreachable(now_ns):
            if lost.silent_ns > limit_ns:
                msg = (
                    f"{lost.host} has been unreachable from {host_name(self._host)} for "
                    f"{lost.silent_ns / 1e9:.0f} s (runtime.unreachable_after_ms): {lost.why}"
                )
                raise AttemptLostError(msg)

    def _timeout_ns(self, now_ns: int) -> int:
        longest_ns = int(self._assignment.settings.transport.doorbell_timeout_ms * 1e6)
        if len(set(self._assignment.slot_hosts)) > 1:
            longest_ns = min(longest_ns, WATERMARK_POLL_NS)
        return max(0, min(longest_ns, self._opened.next_due_ns - now_ns))

    def _has_work(self) -> bool:
        """Do what came up between the last turn and falling asleep; whether there was anything."""
        if max(self._aborted, self._finished) >= self._attempt:
            return True
        return self._opened.poll()

    def _wake(self) -> None:
        board = self._board
        if board is not None:
            board.wake()
