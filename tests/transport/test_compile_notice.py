"""The line that says that functions are being compiled: when it is shown, and when it is not."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest

from whale_ray.transport.compile_notice import NOTICE, PATIENCE_NS, CompileNotice


class Terminal(io.StringIO):
    def __init__(self, *, watched: bool) -> None:
        super().__init__()
        self._watched = watched

    def isatty(self) -> bool:
        return self._watched


class Compiler:
    """Compiles functions that take a time, one within another."""

    def __init__(self, *, watched: bool = True) -> None:
        self.now_ns = 0
        self.terminal = Terminal(watched=watched)
        self.notice = CompileNotice(lambda: self.now_ns, lambda: self.terminal)

    def compile(self, took_ns: int, *inner_ns: int, module: str = "whale_ray.transport.ring"):
        event = SimpleNamespace(
            data={"dispatcher": SimpleNamespace(py_func=SimpleNamespace(__module__=module))}
        )
        self.notice.on_start(event)
        self.now_ns += took_ns
        for took in inner_ns:
            self.compile(took, module=module)
        self.notice.on_end(event)

    @property
    def said(self) -> str:
        return self.terminal.getvalue()


def test_it_is_said_once_when_compiling_has_taken_a_second():
    compiler = Compiler()
    compiler.compile(PATIENCE_NS // 2)
    compiler.compile(PATIENCE_NS // 2)
    assert compiler.said == ""
    compiler.compile(1)
    compiler.compile(PATIENCE_NS)
    compiler.compile(1)
    assert compiler.said == NOTICE


def test_a_function_within_another_counts_once():
    compiler = Compiler()
    compiler.compile(PATIENCE_NS // 4, PATIENCE_NS // 4, PATIENCE_NS // 4)
    compiler.compile(1)
    assert compiler.said == ""
    compiler.compile(PATIENCE_NS, 1)
    assert compiler.said == NOTICE


@pytest.mark.parametrize("watched", [True, False])
def test_nothing_is_said_without_a_terminal_or_to_a_silent_process(watched):
    compiler = Compiler(watched=watched)
    compiler.notice.silent = watched
    compiler.compile(2 * PATIENCE_NS)
    compiler.compile(1)
    assert compiler.said == ""


def test_a_users_own_functions_do_not_count():
    compiler = Compiler()
    compiler.compile(2 * PATIENCE_NS, module="features")
    compiler.compile(1)
    assert compiler.said == ""


def test_without_a_terminal_nothing_is_said():
    compiler = Compiler()
    compiler.notice = CompileNotice(lambda: compiler.now_ns, lambda: None)
    compiler.compile(PATIENCE_NS)
    compiler.compile(PATIENCE_NS)
    assert compiler.notice.silent
