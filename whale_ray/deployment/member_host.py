"""Hosts one worker or relay behind a fleet's wrapper: carries out calls by name, returns events."""

from __future__ import annotations

import logging
import pickle
import queue
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

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
from ..control.controller import REJOIN
from ..control.controller_events import Raised, Returned
from ..control.fleet import MemberMessage, SnapshotTaken

if TYPE_CHECKING:
    from .members import Member

_log = logging.getLogger(__name__)

T = TypeVar("T")
_CALLS_MAX = 64

COMMANDS = frozenset({"drain", "finish", "abort", "tell"})
"""Calls that take effect while another call runs; they return nothing."""


class WorkerHost:
    """Member `index` of a job; `execute` runs in one thread, `command` and `snapshot` in any."""

    def __init__(self, index: int, member: Member) -> None:
        self._index = index
        self.worker = member
        self._changed = threading.Condition()
        self._term = 0
        self._step: tuple[int, str] | None = None
        self._told: Returned | Raised | None = None

    def execute_once(
        self, term: int, attempt: int, method: str, arguments: tuple[Any, ...]
    ) -> Returned | Raised:
        """Carry out a step, or tell the result again if it was carried out before.

        While another thread carries it out, wait for its end: a controller that took the place of a
        dead one asks like this. A controller of an older term is refused.
        """
        with self._changed:
            if term < self._term:
                return Raised(self._index, attempt, method, JobError(_outdated(term, self._term)))
            self._term = term
            if self._step == (attempt, method):
                self._changed.wait_for(lambda: self._told is not None)
                assert self._told is not None
                return self._told
            self._step, self._told = (attempt, method), None
        told = self.execute(attempt, method, arguments)
        with self._changed:
            self._told = told
            self._changed.notify_all()
        return told

    def execute(self, attempt: int, method: str, arguments: tuple[Any, ...]) -> Returned | Raised:
        """Carry out one step of an attempt's life; an error becomes an event, too."""
        if method not in ("open", REJOIN) and self.worker.attempt != attempt:
            lost = NotInAttemptError(f"it is in attempt {self.worker.attempt}")
            return Raised(self._index, attempt, method, lost)
        try:
            result = getattr(self.worker, method)(attempt, *arguments)
        except (SegmentGoneError, TransportGoneError) as error:
            # What another worker made is gone: it died, most likely, and that is about to be told.
            return Raised(self._index, attempt, method, AttemptLostError(str(error)))
        except WhaleError as error:
            return Raised(self._index, attempt, method, error)
        except MemoryError as error:
            text = f"{self.worker.name} ran out of memory in {method}: {error}"
            return Raised(self._index, attempt, method, ResourceError(text))
        except Interrupted:
            raise
        except BaseException as error:  # noqa: BLE001  # whatever it is: the driver must know
            return Raised(self._index, attempt, method, _internal(self.worker.name, method, error))
        return Returned(self._index, attempt, method, result)

    def command(self, attempt: int, name: str, arguments: tuple[Any, ...] = ()) -> None:
        """Tell the running worker something, from another thread."""
        if name not in COMMANDS:
            msg = f"{name!r} is no command of a worker"
            raise ValueError(msg)
        getattr(self.worker, name)(attempt, *arguments)

    def snapshot(self) -> SnapshotTaken:
        """Return the worker's counters; never raises, since they are not worth a job."""
        try:
            return SnapshotTaken(self._index, self.worker.snapshot())
        except Exception:  # noqa: BLE001  # read while the loop writes: the next one may do
            _log.exception("%s cannot tell its counters", self.worker.name)
            return SnapshotTaken(self._index, None)

    def abort(self) -> None:
        """Let the step that is under way end soon, whichever it is; never raises."""
        try:
            self.worker.abort(self.worker.attempt)
        except Exception:  # noqa: BLE001  # its rings may be closed at this very moment
            _log.exception("%s cannot abort", self.worker.name)

    def close(self) -> None:
        """Give back everything that the worker holds."""
        self.worker.close()


class StepThread:
    """Carries out calls one after another in one thread of its own.

    An operator's `open` and its other methods run in the same thread, whichever thread a call
    came in.
    """

    def __init__(self) -> None:
        self._calls: queue.Queue[tuple[Future[Any], Callable[[], Any]]] = queue.Queue(_CALLS_MAX)
        threading.Thread(target=self._serve, name="steps", daemon=True).start()

    def run(self, call: Callable[[], T]) -> T:
        """Wait until the calls before it are through, carry out `call`, return what it returns."""
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
    """Pickle what goes to the controller; an event that cannot be pickled becomes an error."""
    try:
        if isinstance(
            message, SnapshotTaken | MemberMessage
        ):  # often, and nothing of the user's in it
            return pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        return cloudpickle.dumps(message)
    except Exception as error:
        if not isinstance(message, (Returned, Raised)):
            raise
        worker, method = message.worker, message.method
        told = f"raised ({message.error})" if isinstance(message, Raised) else "returned"
        text = (
            f"what worker {worker} {told} at step {method!r} cannot be sent to the controller: "
            f"{type(error).__name__}: {error}; a sink's receipts and errors must be picklable"
        )
        return cloudpickle.dumps(Raised(worker, message.attempt, method, JobError(text)))


def _outdated(term: int, newer: int) -> str:
    return f"a controller of term {term} is outdated: term {newer} leads the job"


def _internal(name: str, method: str, error: BaseException) -> JobError:
    """Wrap an error that is not ours, with its traceback, in one that can travel."""
    text = "".join(traceback.format_exception(error)).rstrip()
    return JobError(f"{text}\nin {name}, while it was to {method}")
