"""A job's tables in a notebook, which live while it runs."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING

from ..control.supervisor import ALIVE

if TYPE_CHECKING:
    from .job import Job

_INTERVAL_S = 1.0


class _Tables:
    """What is shown: HTML where it can be, else a line."""

    def __init__(self, job: Job) -> None:
        self._html = job._repr_html_()
        self._text = repr(job)

    def __repr__(self) -> str:
        return self._text

    def _repr_html_(self) -> str:
        return self._html


def show_while_it_runs(job: Job) -> bool:
    """Show a job that runs and keep what is shown up to date; return whether it does.

    It does not for a job that has ended, nor outside of a notebook, where what is shown stays.
    """
    if "ipykernel" not in sys.modules or job.state not in ALIVE:
        return False
    from IPython.display import display

    shown = display(_Tables(job), display_id=True)
    pause = threading.Event()  # nobody sets it

    def keep_up_to_date() -> None:
        runs = True
        while runs:
            pause.wait(_INTERVAL_S)
            runs = job.state in ALIVE
            shown.update(_Tables(job))

    threading.Thread(target=keep_up_to_date, name=f"show {job.name}", daemon=True).start()
    return True
