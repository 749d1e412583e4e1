"""Calls a user's operator: one thread at a time, timed, its errors with the operator's name."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import NoReturn, ParamSpec, TypeVar

from ...configs.errors import Interrupted, TransportError, TransportGoneError, user_traceback
from ..clock import Clock
from .operators import Receiver, Sender, TransportContext

_log = logging.getLogger(__name__)
P = ParamSpec("P")
T = TypeVar("T")


class OperatorCalls:
    """Makes all calls of one operator; `name` is its name in messages."""

    def __init__(self, context: TransportContext, clock: Clock, *, mutex: bool) -> None:
        self.name = context.describe()
        self.busy_ns = 0
        """Time spent in the operator so far."""
        self._clock = clock
        self._mutex: AbstractContextManager[object] = threading.Lock() if mutex else nullcontext()

    def __call__(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a method of the operator.

        Raises:
            BlockingIOError, ConnectionError: the operator did.
            TransportError: it raised anything else.
        """
        try:
            with self._mutex:
                begin_ns = self._clock.monotonic_ns()
                try:
                    return function(*args, **kwargs)
                finally:
                    self.busy_ns += self._clock.monotonic_ns() - begin_ns
        except (BlockingIOError, ConnectionError, Interrupted):
            raise
        except BaseException as error:
            msg = f"{user_traceback(error).rstrip()}\nin {self.name}"
            raise TransportError(msg) from error

    def outside_of_the_loop(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a method that may not raise BlockingIOError, such as `open`.

        Raises:
            TransportGoneError: it raised ConnectionError.
            TransportError: it raised anything else.
        """
        try:
            return self(function, *args, **kwargs)
        except ConnectionError as error:
            raise self.gone(error) from error
        except BlockingIOError as error:
            self.blame(f"raised {error!r} where it must not")

    def statistics(self, operator: Sender | Receiver) -> Mapping[str, int]:
        """Return the operator's own counters."""
        counters = self.outside_of_the_loop(operator.statistics)
        if not isinstance(counters, Mapping):
            self.blame(f"has statistics() that return {_short(counters)}: return a mapping")
        return dict(counters)

    def answer(self, name: str, function: Callable[[], bool]) -> bool:
        """Call `ready_to_send` or `available`, `name` in messages; raises as a call does."""
        answer = self(function)
        if answer is None:
            self.blame(f"has {name}() that returns None: return True or False")
        return bool(answer)

    def close(self, operator: Sender | Receiver) -> None:
        """Close the operator. An error is logged and ends nothing.

        By then everything was delivered, or something else has failed, which is more important.
        """
        try:
            self(operator.close)
        except ConnectionError:
            return  # the other side is gone, which may be the reason for closing
        except (BlockingIOError, TransportError) as error:
            _log.warning("an operator could not be closed: %s", error)

    def gone(self, error: ConnectionError) -> TransportGoneError:
        """Return the error for an operator whose other side is gone."""
        return TransportGoneError(f"{self.name}: its other side is gone: {error!r}")

    def blame(self, text: str) -> NoReturn:
        """Raise TransportError for an operator that breaks its contract."""
        msg = f"{self.name} {text}"
        raise TransportError(msg)


def _short(value: object) -> str:
    return f"{value!r:.60}"
