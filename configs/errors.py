"""Every error that whale-ray raises on purpose.

::

    WhaleError
    ├── UsageError                 the caller can mend it; the command line exits with 2
    │   ├── SettingsError          an unknown key, a value outside its range
    │   ├── TopologyError          a mistake found while building or planning a topology
    │   ├── ExpressionError        a column expression that does not fit its batch
    │   └── InputError             a missing file or column, an unsupported type
    ├── JobError                   the job ended without its result; the command line exits with 1
    │   ├── UserFunctionError      a user's own function raised
    │   ├── BadRowError            a row that cannot be used, where the user chose to refuse
    │   ├── HeldViewsError         an operator keeps views and would stall its ring
    │   ├── WorkerDiedError        a worker died and the job could not be restarted
    │   ├── JobCancelledError      the user ended it; the command line exits with 130
    │   ├── AttemptLostError       a worker is not in the attempt it was asked about; internal
    │   │   └── NotInAttemptError  its process never was in it; internal
    │   ├── OutputError            the result could not be written or published
    │   ├── SparkFailedError       Spark failed in preparing or comparing an application's rows
    │   ├── TransportError         a user's transport raised, or delivered what was not sent
    │   │   └── TransportGoneError its other side is gone; internal
    │   └── ResourceError          no room in memory, no processor, no Java, a port in use
    │       └── SegmentGoneError   memory that another process shared; internal
    └── ProtocolError              bytes that whale-ray did not write, or not this way
        ├── ForeignMessageError    no magic, another version, an unknown kind
        ├── TruncatedMessageError  shorter than its header says
        └── CorruptedMessageError  its checksum or its inner lengths do not agree
"""

from __future__ import annotations

import os
import traceback
from types import TracebackType

EXIT_FAILURE = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


class WhaleError(Exception):
    """The root of all errors of whale-ray; `str()` is one line naming the thing and the remedy."""

    exit_code = EXIT_FAILURE


class Interrupted(KeyboardInterrupt):
    """The user insists on the end, by a second Ctrl-C: not to be taken for a function's own error.

    Whatever else user code raises is its error, also KeyboardInterrupt and SystemExit.
    """


class UsageError(WhaleError):
    """Something that the caller wrote or passed is wrong."""

    exit_code = EXIT_USAGE


class SettingsError(UsageError):
    """A setting is unknown, has the wrong type or lies outside its range."""


class TopologyError(UsageError):
    """The topology cannot be built or planned as written."""


class ExpressionError(UsageError):
    """A column expression names a column or an operation that its input does not have."""


class InputError(UsageError):
    """An input is missing, lacks a column or has a type that whale-ray does not support."""


class JobError(WhaleError):
    """The job ended without its result."""


class UserFunctionError(JobError):
    """A user's function raised: their traceback comes first, then where it happened.

    All arguments are text or integers, so that the error crosses process borders unchanged.
    """

    def __init__(
        self, operator_id: str, instance: int, user_traceback: str, row_preview: str
    ) -> None:
        super().__init__(operator_id, instance, user_traceback, row_preview)
        self.operator_id = operator_id
        self.instance = instance
        self.user_traceback = user_traceback
        self.row_preview = row_preview

    @classmethod
    def of(
        cls, error: BaseException, operator_id: str, instance: int, row_preview: str
    ) -> UserFunctionError:
        """Make the error from what the user's function raised, without our own frames above it."""
        return cls(operator_id, instance, user_traceback(error), row_preview)

    def __str__(self) -> str:
        where = f"in operator {self.operator_id!r}, instance {self.instance}"
        return f"{self.user_traceback.rstrip()}\n{where}; input: {self.row_preview}"


def user_traceback(error: BaseException) -> str:
    """Return the traceback of what a user's code raised, without our own frames above it."""
    begin = _first_user_frame(error.__traceback__)
    return "".join(traceback.format_exception(type(error), error, begin))


def _first_user_frame(frames: TracebackType | None) -> TracebackType | None:
    """Skip the frames of whale-ray that lead to the user's code; keep all if there is none."""
    frame = frames
    while frame is not None:
        module = str(frame.tb_frame.f_globals.get("__name__", ""))
        if not module.startswith("whale_ray.") or module.startswith("whale_ray.applications."):
            return frame
        frame = frame.tb_next
    return frames


class BadRowError(JobError):
    """A row cannot be used and the user chose to refuse such rows."""


class HeldViewsError(JobError):
    """An operator keeps views of received batches and would stall its ring: it must copy them."""


class WorkerDiedError(JobError):
    """A worker died and the job could not be restarted."""


class JobCancelledError(JobError):
    """The user ended the job before it had a result."""

    exit_code = EXIT_INTERRUPTED


class AttemptLostError(JobError):
    """A worker is not in the attempt that it was asked about: aborted, or started anew since."""


class NotInAttemptError(AttemptLostError):
    """A member is asked to go on with an attempt that its process has not begun."""


class OutputError(JobError):
    """The result could not be written or published."""


class SparkFailedError(JobError):
    """Spark failed in what an application asked of it."""


class TransportError(JobError):
    """A transport that the user plugged in raised, or delivered something that was not sent."""


class TransportGoneError(TransportError):
    """The other side of a user's transport is gone: its process, or its attempt, has ended."""


class ResourceError(JobError):
    """The machine or the cluster lacks something that the job needs."""


class SegmentGoneError(ResourceError):
    """Memory that another process shared is gone: that process, or its attempt, has ended."""


class ProtocolError(WhaleError):
    """Received bytes do not follow the wire format."""


class ForeignMessageError(ProtocolError):
    """The bytes are not a message of this version of whale-ray."""


class TruncatedMessageError(ProtocolError):
    """The message is shorter than its header says."""


class CorruptedMessageError(ProtocolError):
    """The message's checksum or inner lengths do not agree with its bytes."""


def system_reason(error: OSError) -> str:
    """Return in the system's words why a call failed, such as `No space left on device`.

    Libraries put words of their own around them.
    """
    return os.strerror(error.errno) if error.errno else str(error).partition("\n")[0]
