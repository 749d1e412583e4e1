"""A program's own handler of SIGTERM goes on while it is connected to Ray."""

from __future__ import annotations

import ctypes
import os
import signal

import pytest

from whale_ray.ray_bridge import session


def test_a_handler_that_ray_replaces_beneath_python_is_the_programs_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import ray

    def init(**_options: object) -> None:
        """Do as Ray's C++ library does, of which Python's module does not know."""
        ctypes.CDLL(None).signal(signal.SIGTERM.value, int(signal.SIG_IGN))

    monkeypatch.setattr(ray, "init", init)
    received: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _frame: received.append(number))
    try:
        session._initialize("a Ray")
        os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert received == [signal.SIGTERM]
