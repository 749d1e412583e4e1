"""A job's tables in a notebook, updated while the job runs."""

from __future__ import annotations

import sys
import threading
from typing import Protocol

from ..control.job_states import ALIVE

_INTERVAL_S = 1.0


class _ShownJob(Protocol):
    """The parts of a `Job` that are shown."""

    name: str

    @property
    def state(self) -> str: ...

    def _repr_html_(self) -> str: ...


class _Tables:
    """A snapshot of a job for display: HTML, or one line where HTML is not possible."""

    def __init__(self, job: _ShownJob) -> None:
        self._html = job._repr_html_()
        self._text = repr(job)

    def __repr__(self) -> str:
        return self._text

    def _repr_html_(self) -> str:
        return self._html


def show_live(job: _ShownJob) -> bool:
    """Show a running job in a notebook and update the display until the job ends.

    Returns False, and shows nothing, if the job has ended or this is not a notebook.
    """
    if "ipykernel" not in sys.modules or job.state not in ALIVE:
        return False
    from IPython.display import display

    shown = display(_Tables(job), display_id=True)
    pause = threading.Event()  # never set: only its timeout is used

    def keep_up_to_date() -> None:
        runs = True
        while runs:
            pause.wait(_INTERVAL_S)
            runs = job.state in ALIVE
            shown.update(_Tables(job))

    threading.Thread(target=keep_up_to_date, name=f"show {job.name}", daemon=True).start()
    return True
