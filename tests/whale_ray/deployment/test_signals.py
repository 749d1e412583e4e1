"""Signals that end a job: what drains it, what interrupts it, and whose handlers stay."""

from __future__ import annotations

import signal

import pytest

from whale_ray.deployment.signals import draining_signals, interrupting_signals
from whale_ray.transport.clock import VirtualClock


def test_the_second_signal_interrupts_what_hangs() -> None:
    asked: list[bool] = []
    before = signal.getsignal(signal.SIGTERM)
    with draining_signals(asked.append, interrupt=True):
        signal.raise_signal(signal.SIGTERM)
        assert asked == [True]
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGTERM) is before
    assert asked == [True, False]
    assert signal.getsignal(signal.SIGTERM) is before


def test_signals_that_come_together_are_one_stop_but_ctrl_c_counts_each_time() -> None:
    """`timeout` sends SIGTERM to the command and to its group; a terminal sends SIGHUP, too."""
    asked: list[bool] = []
    clock = VirtualClock()
    with draining_signals(asked.append, clock=clock):
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGHUP)
        assert asked == [True]
        clock.sleep_ns(1_000_000_000)
        signal.raise_signal(signal.SIGTERM)
        assert asked == [True, False]
    asked.clear()
    with draining_signals(asked.append, clock=clock):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
    assert asked == [True, False]


def test_signals_ignored_by_nohup_stay_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        asked: list[bool] = []
        with draining_signals(asked.append), interrupting_signals():
            signal.raise_signal(signal.SIGHUP)
        assert asked == []
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_the_command_answers_a_stop_as_it_does_ctrl_c_and_gives_the_handlers_back(
    number: int,
) -> None:
    inherited = signal.signal(number, signal.SIG_DFL)  # under `nohup` the signal is ignored
    try:
        with pytest.raises(KeyboardInterrupt), interrupting_signals():
            signal.raise_signal(number)
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, inherited)
