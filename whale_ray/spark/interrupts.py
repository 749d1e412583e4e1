"""An interrupt ends the query that it interrupts.

Else Spark computes on for nobody, and the next query waits for its cores: pyspark cancels jobs at
Ctrl-C only where the session was made in the main thread, which `start_apart` does not.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any
from uuid import uuid4

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CANCEL_TIMEOUT_S = 5.0


@contextmanager
def ended_by_interrupt(session: SparkSession) -> Iterator[None]:
    """Cancel the jobs of Spark that this thread starts in the block if an interrupt leaves it."""
    context: Any = session.sparkContext
    tag = f"whale-ray-{uuid4().hex}"

    def cancel() -> None:
        with suppress(Exception):  # Java has ended, and the jobs with it
            context.cancelJobsWithTag(tag)

    context.addJobTag(tag)
    try:
        yield
    except Exception:
        context.removeJobTag(tag)
        raise
    except BaseException:
        # This thread's connection to Java still waits for the answer to the query.
        thread = threading.Thread(target=cancel, name="Spark's cancellation", daemon=True)
        thread.start()
        thread.join(_CANCEL_TIMEOUT_S)
        raise
    else:
        context.removeJobTag(tag)
