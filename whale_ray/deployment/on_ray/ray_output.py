"""What users' functions print in Ray's workers: where it is kept, and how the driver gets it.

All lines go into the logs of the Ray session, with operator and instance. The driver fetches them
from the actors, without Ray's own messages. If the user has connected to Ray with
`log_to_driver=True`, the driver does not fetch them, since Ray prints them already.
"""

from __future__ import annotations

import inspect
import logging
import threading
from collections.abc import Sequence
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayError

from ...tasks.capture import Capture
from ...tasks.printed import Fetched, Outbox, PrintedLine, PrintLimit
from ...transport.clock import SystemClock
from ..envelope import Envelope
from ..printer import Printer

_OUTBOX_LINES_MAX = 16_384
_RAYS_OWN = (":actor_name:", ":task_name:", ":job_id:")
"""Lines by which Ray attributes a log file; it looks for them at the file's beginning."""
_FETCH_WAIT_S = 5.0
_RECEIPT_TIMEOUT_S = 1.0
_ASK_AGAIN_AFTER_S = 0.2
_PRINT_TIMEOUT_S = 3.0
_LOOK_S = 0.5
_LAST_LINES_NS = 3_000_000_000
"""How long the driver waits for the last lines after the end of a job."""

# Ray's functions without their wrapper, which would start another Ray after the end of this one.
_get, _wait = inspect.unwrap(ray.get), inspect.unwrap(ray.wait)

_log = logging.getLogger(__name__)


def ray_prints_output() -> bool:
    """Return whether Ray itself prints in this process what its workers print."""
    worker = ray._private.worker.global_worker
    thread = getattr(worker, "logger_thread", None)
    return thread is not None and thread.is_alive()


def logs_place() -> str:
    """Return a line for the user that says where the output of the workers is kept."""
    folder = ray._private.worker.global_worker.node.get_logs_dir_path()
    return f"what the workers printed is in {folder}/worker-* of each node"


class ActorOutput:
    """The output of an actor's process, kept in its log and fetched by the driver."""

    def __init__(self, name: str, envelope: Envelope) -> None:
        self._outbox: Outbox | None = None
        forward = None
        if envelope.output_lines_per_s:
            self._outbox = Outbox(_OUTBOX_LINES_MAX)
            forward = self._outbox.add
        limit = PrintLimit(envelope.output_lines_per_s, "in the logs of Ray alone")
        self._capture = Capture(name, forward, limit, SystemClock(), keep=True, foreign=_RAYS_OWN)
        self._capture.install(envelope.log_levels)

    def flush(self) -> None:
        """Pass on lines without an end."""
        self._capture.flush()

    def fetch(self, last_answer: int) -> Fetched:
        """Return the newest lines, see `Outbox.fetch`; wait a while for the first of them."""
        if self._outbox is None:
            return Fetched(last_answer, (), closed=True)
        return self._outbox.fetch(last_answer, _FETCH_WAIT_S)

    def close(self) -> None:
        """Wait for a limited time until the driver has all lines."""
        self._capture.flush()
        if self._outbox is not None:
            self._outbox.close(_RECEIPT_TIMEOUT_S)


def fetched(output: ActorOutput | None, last_answer: int) -> Fetched:
    """Return the newest lines of an actor; None: its output is not kept, so there are none."""
    return Fetched(last_answer, (), closed=True) if output is None else output.fetch(last_answer)


class OutputFollower:
    """Prints in the driver what a job's actors print, until they end; in a thread of its own."""

    def __init__(self, actors: Sequence[ActorHandle[Any]]) -> None:
        self._actors = tuple(actors)
        self._answers = [0] * len(self._actors)
        self._asked: dict[Any, int] = {}
        self._job_has_ended = threading.Event()
        self._has_told_place = False
        self._printer = Printer()
        self._clock = SystemClock()
        self._thread = threading.Thread(target=self._follow, name="output", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Wait for a limited time for the last lines, after the job's end."""
        self._job_has_ended.set()
        self._thread.join()  # has a time limit of its own: it must not call a Ray that has ended
        self._printer.close(_PRINT_TIMEOUT_S)

    def _follow(self) -> None:
        try:
            for index in range(len(self._actors)):
                self._ask(index)
            deadline_ns: int | None = None
            while self._asked:
                done, _ = _wait(list(self._asked), num_returns=1, timeout=_LOOK_S)
                for ref in done:
                    self._take(self._asked.pop(ref), ref)
                if self._job_has_ended.is_set():
                    now_ns = self._clock.monotonic_ns()
                    deadline_ns = deadline_ns or now_ns + _LAST_LINES_NS
                    if now_ns >= deadline_ns:
                        self._tell("… the last lines were not fetched in time")
                        return
        except Exception as error:  # noqa: BLE001  # Ray may end at any time; the job reports that
            _log.debug("the output of a job is followed no longer: %s", error)

    def _ask(self, index: int) -> None:
        if ray.is_initialized():  # else the call would start another Ray
            asked = self._actors[index].output.remote(self._answers[index])
            self._asked[asked] = index

    def _take(self, index: int, ref: Any) -> None:
        try:
            fetched: Fetched = _get(ref)
        except RayError:  # it died; Ray restarts it, unless the job has ended
            self._answers[index] = 0
            if not self._job_has_ended.wait(_ASK_AGAIN_AFTER_S):
                self._ask(index)
            return
        self._answers[index] = fetched.number
        self._printer.take(fetched.lines)
        if any(line.left_out for line in fetched.lines) and not self._has_told_place:
            self._has_told_place = True
            self._tell(logs_place())
        if not fetched.closed or fetched.lines:
            self._ask(index)  # this call also confirms the lines received

    def _tell(self, text: str) -> None:
        self._printer.take([PrintedLine("output", text, is_error=True)])
