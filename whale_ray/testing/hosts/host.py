"""One host: a network namespace with one link to the switch that joins it to the others."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ...configs.errors import ResourceError, UsageError
from .commands import find, ip_batch, tc
from .owners import NAMESPACES, end_with_parent, kill_all_in

_CLONE_NEWNET = 0x40000000
_NOBODY = "02:00:00:00:00:00"
"""An address that no interface has: a frame sent there reaches nobody, and nobody answers."""
_LISTENING, _FORWARDING = 1, 3
"""States of a bridge's port, from <linux/if_bridge.h>. One that listens drops all, both ways; it
could be disabled as well, but `ip` ignores a 0, and a blocking one is opened when another comes."""

_QUEUE_MS = 50
"""How long a full queue of a link is, at its rate: a switch's, neither endless nor tiny."""
_BURST_MS = 4
_BURST_BYTES_MIN = 64 * 1024
"""tbf would cut the kernel's 64 KiB segments into packets, at a processor's cost, below this."""


@dataclass(eq=False)
class Host:
    """A network namespace; made by `NamespaceHosts`.

    Attributes:
        index: its place among the hosts.
        name: of the namespace, as `ip netns` lists it.
        address: of its only interface, reachable from all other hosts.
        rate_mbit: of its link, in each direction; None is as fast as the machine.
        delay_ms: what its link adds to a packet on its way in.
    """

    index: int
    name: str
    address: str
    switch: str = field(repr=False)
    """The namespace that the bridge lives in."""
    rate_mbit: float | None = None
    delay_ms: float = 0.0
    _started: list[subprocess.Popen[Any]] = field(default_factory=list, repr=False)

    @property
    def _port(self) -> str:
        return port_name(self.index)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Let the calling thread live in this host for a while.

        Sockets that it opens, and threads and processes that it starts, belong to this host and
        stay there; sockets that were opened before are not touched.
        """
        here = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            there = os.open(NAMESPACES / self.name, os.O_RDONLY | os.O_CLOEXEC)
            try:
                _set_namespace(there)
            finally:
                os.close(there)
            try:
                yield
            finally:
                _set_namespace(here)
        finally:
            os.close(here)

    def popen(self, arguments: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a process in this host, a direct child that is killed when its parent dies.

        Takes what `subprocess.Popen` takes, but no `preexec_fn`. To the kernel the parent is the
        thread that calls this: the child is killed when that thread ends. A command that is not
        there shows as exit code 127.
        """
        self._started = [one for one in self._started if one.poll() is None]
        # Not by `setpriv --pdeathsig`: this process may be gone before setpriv comes to ask for it.
        # So all that is left for setpriv is to execute the command, or else to exit with 127.
        ends_with_us = partial(end_with_parent, signal.SIGKILL, os.getpid())
        setpriv = find("setpriv") or "setpriv"
        with self.entered():
            process = subprocess.Popen(
                [setpriv, "--", *arguments],
                preexec_fn=ends_with_us,  # noqa: PLW1509  # two system calls, nothing is allocated
                **options,
            )
        self._started.append(process)
        return process

    def kill_all(self) -> None:
        """Kill all processes in this host, as if its power went; children of `popen` are reaped."""
        for process in self._started:
            process.kill()
            process.wait()
        self._started.clear()
        kill_all_in([self.name])

    def cut(self, other: Host | None = None) -> None:
        """Cut the link of this host, or only between it and another one, in both directions.

        Nobody is told: interfaces stay up, connections stay open, and what is sent vanishes. What
        stands in the link's queue when it is cut still arrives.
        """
        if other is None:
            self._set_port(_LISTENING)
            return
        self._check(other)
        for one, two in ((self, other), (other, self)):
            line = f"neigh replace {two.address} lladdr {_NOBODY} nud permanent dev eth0"
            ip_batch(one.name, [line])

    def heal(self, other: Host | None = None) -> None:
        """Undo `cut` with the same arguments; heals what is whole as well."""
        if other is None:
            self._set_port(_FORWARDING)
            return
        self._check(other)
        for one, two in ((self, other), (other, self)):
            # Replaced first: what is not there cannot be deleted.
            line = f"neigh replace {two.address} lladdr {_NOBODY} nud permanent dev eth0"
            ip_batch(one.name, [line, f"neigh delete {two.address} dev eth0"])

    def _check(self, other: Host) -> None:
        if other is self or other.switch != self.switch:
            msg = f"{self.name} has no link to {other.name}; name another host of the same hosts"
            raise UsageError(msg)

    def _set_port(self, state: int) -> None:
        ip_batch(self.switch, [f"link set {self._port} type bridge_slave state {state}"])

    def set_rate(self, mbit: float | None) -> None:
        """Limit the link to `mbit` million bits per second in each direction; None lifts it."""
        if mbit is not None and mbit <= 0:
            msg = f"a link of {mbit} Mbit/s carries nothing; use cut(), or None for no limit"
            raise UsageError(msg)
        self.rate_mbit = mbit
        self.shape()

    def shape(self) -> None:
        """Give both ends of the link the rate and the delay that this object names."""
        _shape(self.name, "eth0", self.rate_mbit, 0.0)
        _shape(self.switch, self._port, self.rate_mbit, self.delay_ms)


def port_name(index: int) -> str:
    """Return the interface on the switch's side of a host's link."""
    return f"host{index}"


def _shape(namespace: str, interface: str, mbit: float | None, delay_ms: float) -> None:
    """Set what an interface does with the packets that leave it: first delay, then rate."""

    def replace(*arguments: str) -> None:
        tc(namespace, "qdisc", "replace", "dev", interface, *arguments)

    place: tuple[str, ...] = ("root",)
    if delay_ms > 0:
        replace("root", "handle", "2:", "netem", "limit", "100000", "delay", f"{delay_ms}ms")
        place = ("parent", "2:1")
    if mbit is not None:
        bytes_per_ms = mbit * 1e6 / 8 / 1000
        burst = max(int(bytes_per_ms * _BURST_MS), _BURST_BYTES_MIN)
        limit = burst + max(int(bytes_per_ms * _QUEUE_MS), _BURST_BYTES_MIN)
        rate = ("rate", f"{int(mbit * 1e6)}bit", "burst", f"{burst}b", "limit", f"{limit}b")
        replace(*place, "handle", "3:", "tbf", *rate)
        return
    replace(*place, "handle", "4:", "pfifo", "limit", "100000")
    if place == ("root",):  # back to no queue at all, which is how a link begins
        tc(namespace, "qdisc", "delete", "dev", interface, "root")


def _set_namespace(descriptor: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, _CLONE_NEWNET) != 0:
        msg = f"cannot enter a network namespace: {os.strerror(ctypes.get_errno())}"
        raise ResourceError(msg)
