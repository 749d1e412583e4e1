"""What becomes of exceptions that sinks of users, Ray, or the controller itself raise."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from ..configs.errors import (
    Interrupted,
    JobError,
    OutputError,
    UserFunctionError,
    WhaleError,
)
from ..tasks.capture import running

_log = logging.getLogger(__name__)


@contextmanager
def attributed_to(operator_id: str, preview: str) -> Iterator[None]:
    """Attribute to an operator what its sink raises, or prints, in the block.

    Raises OutputError for an OSError, UserFunctionError for any other exception that is not ours;
    `preview` says what the sink was given.
    """
    try:
        with running(operator_id):
            yield
    except (WhaleError, Interrupted):
        raise
    except OSError as error:
        msg = f"the output of {operator_id!r} cannot be published: {error}"
        raise OutputError(msg) from error
    except BaseException as error:
        raise UserFunctionError.of(error, operator_id, 0, preview) from error


@contextmanager
def logged(what: str) -> Iterator[None]:
    """Log what the block raises and continue: the job's own end matters more.

    Our own errors say in a line what was wrong; all others are logged with their traceback.
    """
    try:
        yield
    except Interrupted:
        raise
    except WhaleError as error:
        _log.warning("cannot %s: %s", what, error)
    except KeyboardInterrupt:  # one more Ctrl-C, while the job ends
        _log.warning("cannot %s: interrupted", what)
    except BaseException:  # noqa: BLE001  # whatever a user's sink, or a failed Ray, raises
        _log.exception("cannot %s", what)


def as_whale_error(error: Exception) -> WhaleError:
    """Wrap an exception that is not ours, with its traceback, in a JobError that can be pickled."""
    if isinstance(error, WhaleError):
        return error
    text = "".join(traceback.format_exception(error)).rstrip()
    return JobError(f"{text}\nwhile the job was led")
