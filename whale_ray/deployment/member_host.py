"""Carries out a fleet's calls on one worker or relay, and returns events."""

from __future__ import annotations

import logging
import pickle
import queue
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

import cloudpickle

from ..configs.errors import (
    AttemptLostError,
    Interrupted,
    JobError,
    NotInAttemptError,
    ResourceError,
    SegmentGoneError,
    TransportGoneError,
    WhaleError,
)
from ..control.attempt_steps import REJOIN
from ..control.controller_events import Raised, Returned
from ..control.fleet import CountersTaken, MemberMessage
from .freed_memory import keep_freed_memory
from .members import Member

_log = logging.getLogger(__name__)

T = TypeVar("T")
_CALLS_MAX = 64

COMMANDS = frozenset({"drain", "finish", "abort", "tell"})
"""Calls that take effect while a step runs; they return nothing."""


class MemberHost:
    """Member `index` of a job; `execute` runs in one thread, `command` and `counters` in any."""

    def __init__(self, index: int, member: Member) -> None:
        keep_freed_memory()
        self._index = index
        self.member = member
        self._changed = threading.Condition()
        self._term = 0
        self._step: tuple[int, str] | None = None
        self._answer: Returned | Raised | None = None

    def execute_once(
        self, term: int, attempt: int, method: str, arguments: tuple[Any, ...]
    ) -> Returned | Raised:
        """Carry out a step, or return its result again if it was carried out before.

        If another thread carries it out, wait for its end: a controller that replaces a failed one
        repeats its last call. Calls of an older term are refused.
        """
        with self._changed:
            if term < self._term:
                return Raised(self._index, attempt, method, JobError(_outdated(term, self._term)))
            self._term = term
            if self._step == (attempt, method):
                self._changed.wait_for(lambda: self._answer is not None)
                assert self._answer is not None
                return self._answer
            self._step, self._answer = (attempt, method), None
        answer = self.execute(attempt, method, arguments)
        with self._changed:
            self._answer = answer
            self._changed.notify_all()
        return answer

    def execute(self, attempt: int, method: str, arguments: tuple[Any, ...]) -> Returned | Raised:
        """Carry out one step of an attempt; an exception becomes a `Raised`."""
        if method not in ("open", REJOIN) and self.member.attempt != attempt:
            lost = NotInAttemptError(f"it is in attempt {self.member.attempt}")
            return Raised(self._index, attempt, method, lost)
        try:
            result = getattr(self.member, method)(attempt, *arguments)
        except (SegmentGoneError, TransportGoneError) as error:
            # Another worker's memory is gone: it has most likely died.
            return Raised(self._index, attempt, method, AttemptLostError(str(error)))
        except WhaleError as error:
            return Raised(self._index, attempt, method, error)
        except MemoryError as error:
            text = f"{self.member.name} ran out of memory in {method}: {error}"
            return Raised(self._index, attempt, method, ResourceError(text))
        except Interrupted:
            raise
        except BaseException as error:  # noqa: BLE001  # the controller must learn of it
            return Raised(self._index, attempt, method, _internal(self.member.name, method, error))
        return Returned(self._index, attempt, method, result)

    def command(self, attempt: int, name: str, arguments: tuple[Any, ...] = ()) -> None:
        """Carry out a command while a step may run in another thread."""
        if name not in COMMANDS:
            msg = f"{name!r} is no command of a worker"
            raise ValueError(msg)
        getattr(self.member, name)(attempt, *arguments)

    def counters(self) -> CountersTaken:
        """Return the member's counters; never raises, since no job fails for want of counters."""
        try:
            return CountersTaken(self._index, self.member.counters())
        except Exception:  # noqa: BLE001  # read while the loop writes; the next one may succeed
            _log.exception("%s cannot tell its counters", self.member.name)
            return CountersTaken(self._index, None)

    def abort(self) -> None:
        """Let the step under way end soon; never raises."""
        try:
            self.member.abort(self.member.attempt)
        except Exception:  # noqa: BLE001  # its rings may be closed at the same time
            _log.exception("%s cannot abort", self.member.name)

    def close(self) -> None:
        """Release all that the member holds."""
        self.member.close()


class StepThread:
    """Carries out calls one after another in a thread of its own.

    So all methods of an operator run in one thread, whichever thread a call came in.
    """

    def __init__(self) -> None:
        self._calls: queue.Queue[tuple[Future[Any], Callable[[], Any]]] = queue.Queue(_CALLS_MAX)
        threading.Thread(target=self._serve, name="steps", daemon=True).start()

    def run(self, call: Callable[[], T]) -> T:
        """Carry out `call` after the calls before it; return what it returns."""
        future: Future[T] = Future()
        self._calls.put((future, call))
        return future.result()

    def _serve(self) -> None:
        while True:
            future, call = self._calls.get()
            try:
                future.set_result(call())
            except BaseException as error:  # noqa: BLE001  # raised again in the caller's thread
                future.set_exception(error)


def pack(message: object) -> bytes:
    """Pickle a message to the controller; an event that cannot be pickled becomes a `Raised`."""
    try:
        if isinstance(message, CountersTaken | MemberMessage):
            # Frequent, and without objects of the user, which only cloudpickle may know.
            return pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        return cloudpickle.dumps(message)
    except Exception as error:
        if not isinstance(message, (Returned, Raised)):
            raise
        member, method = message.member, message.method
        done = f"raised ({message.error})" if isinstance(message, Raised) else "returned"
        text = (
            f"what worker {member} {done} at step {method!r} cannot be sent to the controller: "
            f"{type(error).__name__}: {error}; a sink's receipts and errors must be picklable"
        )
        return cloudpickle.dumps(Raised(member, message.attempt, method, JobError(text)))


def _outdated(term: int, newer: int) -> str:
    return f"a controller of term {term} is outdated: term {newer} leads the job"


def _internal(name: str, method: str, error: BaseException) -> JobError:
    """Wrap an error that is not ours, with its traceback, in one that can travel."""
    text = "".join(traceback.format_exception(error)).rstrip()
    return JobError(f"{text}\nin {name}, while it was to {method}")
