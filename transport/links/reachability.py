"""Which links are missing: parents to dial, and when; children that have not dialled.

Pure: the time, and which links stand, are passed in.
"""

from __future__ import annotations

import random
from collections.abc import Container
from socket import AddressFamily
from typing import TypeAlias

from ..clock import NEVER_NS
from .link import Role
from .neighbours import Neighbours
from .reconnection import LinkState, Reconnection
from .statistics import Unreachable

ResolvedAddress: TypeAlias = tuple[AddressFamily, tuple[str, int]]
"""Family, numeric address and port of a host."""


class Reachability:
    """The parents and children of one host, as far as they must be linked."""

    def __init__(
        self, neighbours: Neighbours, backoff_ns: tuple[int, int], chance: random.Random
    ) -> None:
        """Expect no link yet; `backoff_ns` and `chance` as of `Reconnection`."""
        self._neighbours = neighbours
        self._backoff_ns = backoff_ns
        self._chance = chance
        self._dials: dict[str, Reconnection] = {}
        self._addresses: dict[str, ResolvedAddress] = {}
        self._next_dial_ns: int | None = NEVER_NS  # None: to be found out
        self._children_lost_ns: dict[str, int] = {}
        self._begun_ns: int | None = None
        self.last_turned_away = ""
        """Why the last connection that was accepted was refused, in words."""

    def begin(self, now_ns: int) -> None:
        """Take note that links can be established from now on; again does nothing."""
        if self._begun_ns is None:
            self._begun_ns = now_ns

    # --- parents -------------------------------------------------------------------------------

    def dial(self, host: str, address: ResolvedAddress, now_ns: int) -> None:
        """Keep a link to `host` up, at `address`."""
        self._neighbours.peer(host)
        self._addresses[host] = address
        if host not in self._dials:
            self._dials[host] = Reconnection(now_ns, *self._backoff_ns)
            self._next_dial_ns = None

    def stop(self, host: str) -> bool:
        """Dial `host` no more; return whether it was dialled."""
        self._next_dial_ns = None
        return self._dials.pop(host, None) is not None

    def is_elsewhere(self, host: str, address: ResolvedAddress) -> bool:
        """Return whether `host` is dialled at another address."""
        return host in self._dials and self._addresses[host] != address

    def __contains__(self, host: str) -> bool:
        """Return whether `host` is dialled."""
        return host in self._dials

    def due(self, now_ns: int) -> list[str]:
        """Return the hosts to dial now."""
        if now_ns < self.next_dial_ns:
            return []
        return [host for host, dialling in self._dials.items() if dialling.due(now_ns)]

    def dialled(self, host: str) -> ResolvedAddress:
        """Take note that an attempt begins; return where."""
        self._dials[host].dialled()
        self._next_dial_ns = None
        return self._addresses[host]

    def failed(self, host: str, now_ns: int, reason: str) -> None:
        """Take note that an attempt failed, or that the link broke."""
        if host in self._dials:
            self._dials[host].failed(now_ns, reason, self._chance.random())
            self._next_dial_ns = None

    @property
    def next_dial_ns(self) -> int:
        """When the next attempt is due; far away if none is to come."""
        if self._next_dial_ns is None:
            waiting = [one for one in self._dials.values() if one.state is LinkState.WAITING]
            self._next_dial_ns = min((one.next_dial_ns for one in waiting), default=NEVER_NS)
        return self._next_dial_ns

    # --- links ---------------------------------------------------------------------------------

    def up(self, host: str, role: Role) -> None:
        """Take note that a link stands; `role` is the peer's."""
        if role is Role.PARENT:
            self._dials[host].up()
        self._children_lost_ns.pop(host, None)

    def broken(self, host: str, role: Role, now_ns: int, reason: str) -> None:
        """Take note that a link broke.

        A child that reads nothing from here is not expected to come back: it may have hung up,
        and what it said may be lost. If it still needs the link, it misses its parent itself.
        """
        if role is Role.PARENT:
            self.failed(host, now_ns, reason)
        elif self._neighbours.serves(host):
            self._children_lost_ns[host] = now_ns
        else:
            self.forget(host)

    def awaited(self, host: str, now_ns: int) -> None:
        """Take note that `host` is expected to dial this one."""
        self._children_lost_ns.setdefault(host, now_ns)

    def forget(self, host: str) -> None:
        """Wait for `host` no more."""
        self._children_lost_ns.pop(host, None)

    def unreachable(
        self, now_ns: int, standing: Container[tuple[str, Role]]
    ) -> tuple[Unreachable, ...]:
        """Return the hosts without a link that stands, for how long, and why; by name.

        Children that were dismissed are not expected. The time before `begin` does not count.
        """
        for host in self._neighbours.admitted():
            if (host, Role.CHILD) not in standing:
                self.awaited(host, now_ns)
        for host in tuple(self._children_lost_ns):
            if self._neighbours.dismissed(host):
                del self._children_lost_ns[host]
        since = dict(self._children_lost_ns)
        for host, reconnection in self._dials.items():
            lost_ns = reconnection.unreachable_since_ns
            if lost_ns is not None:
                since[host] = min(lost_ns, since.get(host, lost_ns))
        begun_ns = now_ns if self._begun_ns is None else self._begun_ns
        return tuple(
            Unreachable(host, max(0, now_ns - max(lost, begun_ns)), self._why(host))
            for host, lost in sorted(since.items())
        )

    def _why(self, host: str) -> str:
        """Return why there is no link to `host`, in words."""
        last = self._neighbours.peer(host).counters.last_failure
        if last or host in self._dials:
            return last or "no answer"
        last = self.last_turned_away  # its name is unknown; most likely it was this host
        return "it has not dialled" + (f"; somebody was turned away: {last}" if last else "")
