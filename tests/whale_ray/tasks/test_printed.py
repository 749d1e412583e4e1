"""Printed lines from a worker to the driver: how many pass, and how the others are counted."""

from __future__ import annotations

import errno
import io
import logging
import multiprocessing
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whale_ray.deployment.printer import Printer
from whale_ray.tasks.capture import Capture, log_levels, running
from whale_ray.tasks.printed import (
    LINE_CHARACTERS_MAX,
    Outbox,
    PrintedLine,
    PrintLimit,
    RowWindow,
    cut,
)
from whale_ray.transport.clock import VirtualClock

MS = 1_000_000


@given(
    st.integers(1, 50),
    st.lists(st.tuples(st.integers(0, 400), st.sampled_from("abc"), st.integers(1, 100))),
)
def test_lines_pass_at_the_limit_and_all_others_are_counted(
    lines_per_s: int, bursts: list[tuple[int, str, int]]
) -> None:
    limit = PrintLimit(lines_per_s, "not shown")
    now_ns, offered, told = 0, 0, []
    for pause_ms, place, lines in bursts:
        now_ns += pause_ms * MS
        offered += lines
        for number in range(lines):
            told += limit.offer(PrintedLine(place, f"line {number}"), now_ns)
        passed = sum(line.text.startswith("line") for line in told)
        assert passed <= lines_per_s * (10 + now_ns / 1e9)
    told += limit.report(now_ns)
    passed = sum(line.text.startswith("line") for line in told)
    counted = [re.match(r"… ([\d,]+) lines? more, not shown", line.text) for line in told]
    left_out = sum(int(match[1].replace(",", "")) for match in counted if match)
    assert passed + left_out == offered
    assert passed >= min(offered, lines_per_s * 10)


def test_a_long_line_is_cut_and_says_so() -> None:
    assert cut("x" * LINE_CHARACTERS_MAX) == "x" * LINE_CHARACTERS_MAX
    assert cut("x" * 5000) == "x" * LINE_CHARACTERS_MAX + "… (904 characters more)"


@given(st.lists(st.one_of(st.integers(1, 5), st.sampled_from(["fetch", "fetch and lose"]))))
def test_every_line_is_fetched_once_even_if_answers_are_lost(steps: list[int | str]) -> None:
    outbox, added, received, last = Outbox(1000), [], [], 0
    for step in steps:
        if isinstance(step, int):
            lines = [PrintedLine("p", str(len(added) + number)) for number in range(step)]
            outbox.add(lines)
            added += lines
        else:
            fetched = outbox.fetch(last, 0.0)
            if step == "fetch":
                received += fetched.lines
                last = fetched.number
    received += outbox.fetch(last, 0.0).lines
    assert received == added


def test_an_outbox_that_nobody_empties_counts_what_it_drops() -> None:
    outbox = Outbox(3)
    outbox.add([PrintedLine("p", str(number)) for number in range(5)])
    outbox.close(0.0)
    fetched = outbox.fetch(0, 0.0)
    assert [line.text for line in fetched.lines] == [
        "… 2 lines, not fetched in time",
        "2",
        "3",
        "4",
    ]
    assert fetched.closed
    assert outbox.fetch(fetched.number, 0.0).lines == ()


def test_the_end_waits_until_the_receipt_of_all_lines_is_confirmed() -> None:
    outbox, confirms, ended = Outbox(3), threading.Event(), []
    outbox.add([PrintedLine("p", "last")])

    def close() -> None:
        outbox.close(threading.TIMEOUT_MAX)
        ended.append(confirms.is_set())

    closing = threading.Thread(target=close)
    closing.start()
    while not (fetched := outbox.fetch(0, 0.0)).closed:
        pass
    confirms.set()
    assert outbox.fetch(fetched.number, 0.0).lines == ()
    closing.join()
    assert ended == [True]


@given(
    st.lists(
        st.one_of(st.integers(1, 9), st.sampled_from(["fetch", "fetch and lose"])), max_size=30
    )
)
def test_what_is_received_and_what_is_told_to_be_lost_are_all_lines(steps: list[int | str]) -> None:
    """Also where the limit has left lines out before, and the lines that say so are lost."""
    outbox, limit, offered, received, last = Outbox(4), PrintLimit(1, "not shown"), 0, [], 0
    for step in steps:
        if isinstance(step, int):
            for number in range(step):
                outbox.add(limit.offer(PrintedLine("p", str(offered + number)), 0))
            offered += step
            outbox.add(limit.report(0))
        else:
            fetched = outbox.fetch(last, 0.0)
            if step == "fetch":
                received += fetched.lines
                last = fetched.number
    outbox.close(0.0)
    while lines := (fetched := outbox.fetch(last, 0.0)).lines:
        received += lines
        last = fetched.number
    assert sum(line.left_out or 1 for line in received) == offered


@contextmanager
def captured(*, keep: bool = False, lines_per_s: int = 1000) -> Iterator[list[str]]:
    found: list[str] = []
    capture = Capture(
        "worker 1",
        lambda lines: found.extend(map(str, lines)),
        PrintLimit(lines_per_s, "not shown"),
        VirtualClock(),
        keep=keep,
    )
    streams, before = (sys.stdout, sys.stderr), logging.lastResort
    capture.install({})
    try:
        yield found
        capture.flush()
    finally:
        sys.stdout, sys.stderr = streams
        logging.lastResort = before


def test_lines_bear_the_operator_whose_code_runs() -> None:
    with captured() as found:
        with running("a#0"):
            sys.stdout.write("one\ntwo ")
            with running("b#1"):
                sys.stdout.write("inner\n")
                sys.stdout.write("without an end")
            sys.stdout.write("three\n")
        sys.stderr.write("outside\n")
        thread = threading.Thread(target=sys.stdout.write, args=("of a thread\n",))
        with running("a#0"):
            thread.start()
            thread.join()
    assert found == [
        "(a#0) one",
        "(b#1) inner",
        "(a#0) two three",
        "(worker 1) outside",
        "(worker 1) of a thread",
        "(b#1) without an end",
    ]


def test_a_progress_bar_is_one_line() -> None:
    with captured() as found:
        for percent in range(0, 101, 10):
            sys.stderr.write(f"\r{percent} %")
        sys.stderr.write("\n")
    assert found == ["(worker 1) 100 %"]


def test_messages_without_a_handler_are_lines_too(monkeypatch: pytest.MonkeyPatch) -> None:
    logger = logging.getLogger("tests.printed")
    monkeypatch.setattr(logger, "propagate", False)  # pytest has handlers at the root
    with captured() as found:
        logger.warning("odd: %d", 3)
        logger.info("not at this level")
    assert found == ["(worker 1) WARNING tests.printed: odd: 3"]


def test_the_users_levels_travel_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("tests.mine"), "level", logging.DEBUG)
    monkeypatch.setattr(logging.getLogger("ray.data"), "level", logging.DEBUG)
    levels = log_levels()
    assert levels["tests.mine"] == logging.DEBUG
    assert levels[""] == logging.getLogger().level
    assert "ray.data" not in levels


def test_what_is_kept_is_whole_and_what_is_passed_on_is_limited(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with captured(keep=True, lines_per_s=1) as found:
        for number in range(12):
            sys.stdout.write(f"{number}\n")
    assert capsys.readouterr().out.splitlines() == [f"(worker 1) {n}" for n in range(12)]
    assert found[:10] == [f"(worker 1) {n}" for n in range(10)]
    assert found[10:] == [
        "(worker 1) … 2 lines more, not shown (runtime.output_lines_per_s=1)",
    ]


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # Python 3.12 warns of threads
def test_a_forked_process_prints_for_itself(capfd: pytest.CaptureFixture[str]) -> None:
    with captured() as found:
        process = multiprocessing.get_context("fork").Process(target=_print_and_flush)
        process.start()
        process.join()
    assert process.exitcode == 0
    assert found == []
    assert capfd.readouterr().out == "from a fork\n"


def _print_and_flush() -> None:
    sys.stdout.write("from a fork\n")
    sys.stdout.flush()


def test_the_stream_is_a_text_stream() -> None:
    with captured():
        assert sys.stdout.writable() and not sys.stdout.isatty()
        assert sys.stdout.encoding.lower().replace("-", "") == "utf8"
        assert sys.stdout.errors
        assert isinstance(sys.stdout, io.TextIOBase)
        assert sys.stdout.buffer


class Held(io.StringIO):
    """A terminal that takes nothing until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.reached, self.free = threading.Event(), threading.Event()

    def write(self, text: str) -> int:
        self.reached.set()
        self.free.wait()
        return super().write(text)


@pytest.mark.parametrize(
    ("encoding", "text", "shown"),
    [
        ("utf-8", "file caf\udce9", b"file caf\\udce9"),
        ("ascii", "caf\xe9 \u2026", b"caf\\xe9 \\u2026"),
        ("utf-8", "caf\xe9", "caf\xe9".encode()),
    ],
)
def test_characters_that_a_stream_lacks_are_escaped(
    monkeypatch: pytest.MonkeyPatch, encoding: str, text: str, shown: bytes
) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr(sys, "stdout", stream)
    printer = Printer()
    printer.take([PrintedLine("p", text), PrintedLine("p", "after")])
    printer.close(10)
    with captured(keep=True) as found:
        sys.stdout.write(text)
    stream.flush()
    assert found == [f"(worker 1) {text}"]
    assert cast(io.BytesIO, stream.buffer).getvalue().splitlines() == [
        b"(p) " + shown,
        b"(p) after",
        b"(worker 1) " + shown,
    ]


def test_a_blocked_terminal_blocks_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines that it does not take are counted, with those that were left out before."""
    held = Held()
    monkeypatch.setattr(sys, "stdout", held)
    monkeypatch.setattr(sys, "stderr", held)
    printer = Printer()
    printer.take([PrintedLine("p", "first")])
    held.reached.wait()
    for number in range(2000):
        printer.take([PrintedLine("p", str(number))])
    printer.take([PrintedLine("p", "… 50 lines more", left_out=50)])
    held.free.set()
    printer.close(10)
    lines = held.getvalue().splitlines()
    assert lines[:2] == ["(p) first", "(p) 0"]
    assert len(lines) == 1026
    assert lines[-1] == "(output) … 1,026 lines, not taken in time"
    printer.take([PrintedLine("p", "last")])
    printer.close(10)
    assert held.getvalue().splitlines()[1026:] == ["(p) last"]


# --- rows of sinks ----------------------------------------------------------------------------


def test_rows_wait_until_earlier_ones_were_printed() -> None:
    window, entered = RowWindow(2), []
    done = threading.Event()

    def send() -> None:
        for number in range(4):
            window.enter()
            entered.append(number)
        window.await_all()
        done.set()

    thread = threading.Thread(target=send)
    thread.start()
    for confirmed in range(4):
        while len(entered) < min(confirmed + 2, 4):
            pass  # the other thread is about to
        assert len(entered) <= confirmed + 2
        assert not done.is_set()
        window.confirm(None)
    thread.join()
    assert done.is_set()


def test_rows_that_cannot_be_printed_or_are_aborted_block_nothing() -> None:
    window = RowWindow(1)
    window.enter()
    window.confirm(errno.EPIPE)
    with pytest.raises(BrokenPipeError):
        window.enter()
    window.enter()
    window.abort(True)
    window.enter()
    window.await_all()


def test_rows_are_printed_however_many_wait_and_confirmed(capsys: Any) -> None:
    printer, told = Printer(), []
    for number in range(3_000):
        printer.take_rows([PrintedLine("shown#0", str(number))], told.append)
    printer.close(60)
    assert told == [None] * 3_000
    assert capsys.readouterr().out.splitlines() == [f"(shown#0) {n}" for n in range(3_000)]


def test_without_a_standard_output_functions_print_nothing_and_sinks_cannot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    errors = io.StringIO()
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", errors)
    printer, done = Printer(), list[int | None]()
    printer.take([PrintedLine("map", "to no place")])
    printer.take([PrintedLine("map", "to stderr", is_error=True)])
    printer.take_rows([PrintedLine("out", "a row")], done.append)
    printer.close(60.0)
    assert errors.getvalue() == "(map) to stderr\n"
    assert done == [errno.EBADF]
