"""All exceptions that whale-ray raises on purpose.

::

    WhaleError
    ├── UsageError                 the caller can correct it; the command line exits with 2
    │   ├── SettingsError          an unknown key, a value outside its range
    │   ├── TopologyError          a mistake found while building or planning a topology
    │   ├── ExpressionError        a column expression that does not fit its batch
    │   └── InputError             a missing file or column, an unsupported type
    │       └── DamagedCheckpointError  a file of a checkpoint is missing, cut short or damaged
    ├── JobError                   the job ended without a result; the command line exits with 1
    │   ├── UserFunctionError      a user's own function raised
    │   ├── BadRowError            a row that cannot be used, and the policy is to fail
    │   ├── HeldViewsError         an operator keeps views and would stall its ring
    │   ├── WorkerDiedError        a worker died and the job could not be restarted
    │   ├── JobCancelledError      the user stopped it; the command line exits with 130
    │   ├── AttemptLostError       a worker is no longer in the attempt of a request; internal
    │   │   └── NotInAttemptError  its process was never in that attempt; internal
    │   ├── OutputError            the result, or a checkpoint, could not be written or published
    │   │   ├── FolderInUseError   another job uses the folder of checkpoints
    │   │   └── ClaimLostError     another job has taken over the folder of checkpoints
    │   ├── SparkFailedError       Spark failed in preparing or comparing an application's rows
    │   ├── TransportError         a user's transport raised, or delivered wrong bytes
    │   │   └── TransportGoneError its other side has ended; internal
    │   └── ResourceError          no room in memory, no processor, no Java, a port in use
    │       ├── SegmentGoneError   memory that another process shared; internal
    │       └── StateFullError     the state of a worker's operators outgrew its budget
    └── ProtocolError              received bytes that do not follow the wire format
        ├── ForeignMessageError    no magic number, another version, an unknown kind
        ├── TruncatedMessageError  shorter than its header says
        └── CorruptedMessageError  wrong checksum or inner lengths
"""

from __future__ import annotations

import os
import traceback
from types import TracebackType

EXIT_FAILURE = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


class WhaleError(Exception):
    """The base of all errors of whale-ray; `str()` is one line with the cause and the remedy."""

    exit_code = EXIT_FAILURE


class Interrupted(KeyboardInterrupt):
    """The user pressed Ctrl-C a second time; never treated as an error of a user's function.

    Any other exception from user code is its error, including KeyboardInterrupt and SystemExit.
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


class DamagedCheckpointError(InputError):
    """A file of a checkpoint is missing, cut short or damaged."""


class JobError(WhaleError):
    """The job ended without a result."""


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
        """Create the error from an exception of a user's function, see `user_traceback`."""
        return cls(operator_id, instance, user_traceback(error), row_preview)

    @property
    def in_a_line(self) -> str:
        """What was raised, without the traceback, and where."""
        raised = self.user_traceback.rstrip().splitlines()[-1]
        return f"{raised}, in operator {self.operator_id!r}"

    def __str__(self) -> str:
        where = f"in operator {self.operator_id!r}, instance {self.instance}"
        return f"{self.user_traceback.rstrip()}\n{where}; input: {self.row_preview}"


def user_traceback(error: BaseException) -> str:
    """Return the traceback of an exception of user code, without whale-ray's own outer frames."""
    begin = _first_user_frame(error.__traceback__)
    return "".join(traceback.format_exception(type(error), error, begin))


def _first_user_frame(frames: TracebackType | None) -> TracebackType | None:
    """Skip whale-ray's frames above the user's code; keep all frames if there is no user code."""
    frame = frames
    while frame is not None:
        module = str(frame.tb_frame.f_globals.get("__name__", ""))
        if not module.startswith("whale_ray.") or module.startswith("whale_ray.applications."):
            return frame
        frame = frame.tb_next
    return frames


class BadRowError(JobError):
    """A row cannot be used, and the policy for such rows is to fail."""


class HeldViewsError(JobError):
    """An operator keeps views of received batches and would stall its ring: it must copy them."""


class WorkerDiedError(JobError):
    """A worker died and the job could not be restarted."""


class JobCancelledError(JobError):
    """The user stopped the job before it had a result."""

    exit_code = EXIT_INTERRUPTED


class AttemptLostError(JobError):
    """A worker is no longer in the attempt of a request: it was aborted, or a new one began."""


class NotInAttemptError(AttemptLostError):
    """A member was asked to continue an attempt that its process has not begun."""


class OutputError(JobError):
    """The result, or a checkpoint, could not be written or published."""


class FolderInUseError(OutputError):
    """Another job uses the folder of checkpoints.

    Attributes:
        job: its id.
        is_locked: whether a process on this host has locked the folder, until it ends.
    """

    def __init__(self, reason: str, job: str = "", *, is_locked: bool = False) -> None:
        super().__init__(reason, job)
        self.job, self.is_locked = job, is_locked

    def __str__(self) -> str:
        return str(self.args[0])


class ClaimLostError(OutputError):
    """Another job has taken over the folder of checkpoints: this one may not commit any more."""


class SparkFailedError(JobError):
    """Spark failed while preparing or comparing an application's rows."""


class TransportError(JobError):
    """A user's transport raised, or delivered bytes that were not sent."""


class TransportGoneError(TransportError):
    """The other side of a user's transport has ended: its process or its attempt."""


class ResourceError(JobError):
    """The machine or the cluster lacks something that the job needs."""


class SegmentGoneError(ResourceError):
    """Another process's shared memory was freed: that process or its attempt has ended."""


class StateFullError(ResourceError):
    """The state of a worker's operators does not fit into the worker's memory budget."""


class ProtocolError(WhaleError):
    """Received bytes do not follow the wire format."""


class ForeignMessageError(ProtocolError):
    """The bytes are not a message of this version of whale-ray."""


class TruncatedMessageError(ProtocolError):
    """The message is shorter than its header says."""


class CorruptedMessageError(ProtocolError):
    """The message's checksum or inner lengths do not agree with its bytes."""


def system_reason(error: OSError) -> str:
    """Return the system's reason for a failed call, such as `No space left on device`.

    Without the text that libraries add to it.
    """
    return os.strerror(error.errno) if error.errno else str(error).partition("\n")[0]
