"""Hosts out of network namespaces, joined by a switch that is a namespace, too.

::

    host 0: eth0 ──veth── host0 ┐                       whale-ray-PID-START-RANDOM-0
    host 1: eth0 ──veth── host1 ├ bridge                …-1
      …                     …   ┘ (namespace …-switch)  …

Nothing is added to the machine's own network: the hosts reach each other and nothing else, and
nothing outside reaches them. So whoever talks to them lives in one of them: a driver runs in host 0
(`hosts[0].popen`), and a test that needs only sockets opens them in `with hosts[i].entered()`.

Every link carries `rate_mbit` in each direction (a token bucket at both ends). Hosts share the
machine's file system, /dev/shm, process numbers and host name; only the network is their own.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import overload

from ...configs.errors import ResourceError, UsageError
from .commands import ip_batch
from .host import Host, port_name
from .owners import folder_of, new_mark, remove, sweep
from .probe import capability

HOSTS_MAX = 1000
"""A Linux bridge has 1,024 ports."""
_PREFIX_BITS = 16

_log = logging.getLogger(__name__)


def address_of(index: int) -> str:
    """Return a host's address: private ones, which need not be free since nothing leads outside."""
    return f"10.77.{(index + 1) // 256}.{(index + 1) % 256}"


class NamespaceHosts(Sequence[Host]):
    """`count` hosts, in a `with` block; needs root.

    They are taken away, with all that runs in them, at the end of the block, on exceptions, Ctrl-C
    and SIGTERM (where the main thread made them and nobody else handles it). What a SIGKILL of the
    owner leaves, the next `NamespaceHosts` of anybody takes away.

    Attributes:
        delay_ms: what each packet is delayed; 0 where the kernel cannot (a warning says so).
        folder: for files of these hosts, removed with them.

    Raises:
        UsageError: no such number of hosts, rate or delay.
        ResourceError: this machine cannot make them; the message says what it lacks.
    """

    def __init__(self, count: int, *, rate_mbit: float | None = None, delay_ms: float = 0.0):
        if not 1 <= count <= HOSTS_MAX:
            msg = f"{count} hosts cannot be made; 1 to {HOSTS_MAX:,} can"
            raise UsageError(msg)
        if delay_ms < 0 or (rate_mbit is not None and rate_mbit <= 0):
            msg = f"delay_ms={delay_ms} or rate_mbit={rate_mbit} is below what a link can have"
            raise UsageError(msg)
        self._count = count
        self._rate_mbit = rate_mbit
        self.delay_ms = delay_ms
        self._mark = ""
        self._hosts: tuple[Host, ...] = ()
        self._restore_signal: Callable[[], None] = _nothing

    @property
    def folder(self) -> Path:
        """Return the folder for files of these hosts; it exists while they do."""
        return folder_of(self._mark)

    @overload
    def __getitem__(self, index: int) -> Host: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Host]: ...
    def __getitem__(self, index: int | slice) -> Host | Sequence[Host]:
        return self._hosts[index]

    def __len__(self) -> int:
        return len(self._hosts)

    def __enter__(self) -> NamespaceHosts:
        able = capability()
        if able.lack:
            msg = f"no hosts for tests: {able.lack}"
            raise ResourceError(msg)
        if self.delay_ms > 0 and not able.delays:
            _log.warning("this kernel has no netem: links have no delay of %g ms", self.delay_ms)
            self.delay_ms = 0.0
        sweep()
        self._mark = new_mark()
        self._restore_signal = _on_sigterm(self._take_away)
        try:
            self._make()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Take the hosts away, with all that runs in them. May be called twice."""
        self._restore_signal()
        self._restore_signal = _nothing
        for host in self._hosts:
            host.kill_all()
        self._hosts = ()
        self._take_away()

    def _take_away(self) -> None:
        if self._mark:
            remove(self._mark)

    def _make(self) -> None:
        switch = f"{self._mark}-switch"
        self.folder.mkdir(mode=0o700)
        hosts = [
            Host(index, f"{self._mark}-{index}", address_of(index), switch, self._rate_mbit)
            for index in range(self._count)
        ]
        ip_batch(None, (f"netns add {name}" for name in (switch, *(one.name for one in hosts))))
        ip_batch(switch, _switch_commands(hosts))
        for host in hosts:
            ip_batch(
                host.name,
                [
                    "link set lo up",
                    f"address add {host.address}/{_PREFIX_BITS} dev eth0",
                    "link set eth0 up",
                ],
            )
            host.delay_ms = self.delay_ms
            if host.rate_mbit is not None or host.delay_ms > 0:
                host.shape()
        self._hosts = tuple(hosts)


def _switch_commands(hosts: Sequence[Host]) -> Iterator[str]:
    yield "link add bridge type bridge stp_state 0 forward_delay 0"
    yield "link set bridge up"
    for host in hosts:
        port = port_name(host.index)
        yield f"link add {port} type veth peer name eth0 netns {host.name}"
        yield f"link set {port} master bridge up"


def _on_sigterm(clean_up: Callable[[], None]) -> Callable[[], None]:
    """Clean up before SIGTERM ends this process; return what undoes this.

    Only where that is possible (in the main thread), and where SIGTERM would end the process
    without a word: a handler of somebody else's raises or stops in its own way.
    """
    if threading.current_thread() is not threading.main_thread():
        return _nothing
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        return _nothing

    def end(number: int, _frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        with suppress(ResourceError):  # the next sweep tries again
            clean_up()
        os.kill(os.getpid(), number)

    signal.signal(signal.SIGTERM, end)

    def restore() -> None:
        if signal.getsignal(signal.SIGTERM) is end:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    return restore


def _nothing() -> None:
    """Do nothing."""
