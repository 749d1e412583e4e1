"""An argument parser that raises `UsageError`."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Iterable
from typing import Any, NoReturn

from ..configs.errors import UsageError
from ..operators.arguments import is_time


class Parser(argparse.ArgumentParser):
    """A parser that raises UsageError where argparse would print its usage and exit.

    It accepts no abbreviated options; the message about an unknown one suggests a similar one.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.allow_abbrev = False
        self._needs: list[tuple[str, str]] = []
        self._excludes: list[tuple[str, str]] = []

    def need(self, option: str, *others: str) -> None:
        """Refuse each of `others` without `option`, since it would have no effect."""
        self._needs += [(option, other) for other in others]

    def exclude(self, option: str, *others: str) -> None:
        """Refuse each of `others` together with `option`, since it would have no effect."""
        self._excludes += [(option, other) for other in others]

    def error(self, message: str) -> NoReturn:
        """Raise UsageError with the message and the command that explains the options."""
        text = f"{message}; see {self.prog} --help"
        raise UsageError(text)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Parse, and refuse unknown arguments here, since this parser knows similar options.

        Raises:
            UsageError: an argument is unknown, missing or malformed.
        """
        words = list(sys.argv[1:] if args is None else args)
        parsed, unknown = super().parse_known_args(words, namespace)
        if unknown:
            word = unknown[0].partition("=")[0]
            kind = "option" if word.startswith("-") else "argument"
            self.error(f"unknown {kind} {word}{did_you_mean(word, self._option_string_actions)}")
        self._check_combinations(self._given(words))
        return parsed, unknown

    def _given(self, words: list[str]) -> set[str]:
        """Return the options in `words`, by the first of their names."""
        written = {word.partition("=")[0] for word in words}
        return {
            action.option_strings[0]
            for action in self._actions
            if written.intersection(action.option_strings)
        }

    def _check_combinations(self, given: set[str]) -> None:
        for option, other in self._excludes:
            if {option, other} <= given:
                msg = f"{other} means nothing with {option}; leave one of them out"
                raise UsageError(msg)
        for option, other in self._needs:
            if other in given and option not in given:
                msg = f"{other} means nothing without {option}; leave it out"
                raise UsageError(msg)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        choices = [str(choice) for choice in action.choices]
        hint = did_you_mean(str(value), choices)
        msg = f"unknown {value!r}{hint}; there are {', '.join(choices)}"
        raise argparse.ArgumentError(action, msg)


def check_timeout(timeout_s: float) -> None:
    """Raise UsageError for a `--timeout` that is no time to wait."""
    if not is_time(timeout_s):
        msg = f"--timeout is {timeout_s:g}: give seconds, 0 or more"
        raise UsageError(msg)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return " (did you mean X?)" if one of `known` is similar to `word`, else ""."""
    near = difflib.get_close_matches(word, list(known), n=1)
    return f" (did you mean {near[0]}?)" if near else ""
