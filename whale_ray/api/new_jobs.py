"""A job that is about to begin: its id, and whether its topology and outputs permit it."""

from __future__ import annotations

import re
import secrets
from typing import TYPE_CHECKING

from ..configs.errors import OutputError
from ..plan.preflight import preflight

if TYPE_CHECKING:
    from ..configs.settings import Settings
    from ..plan.logical import LogicalPlan
    from .checkpoints import CheckpointOptions

__all__ = ["checked_job_id", "new_job_id"]


def new_job_id(name: str) -> str:
    """Return a unique id, usable as the name of a file or an actor."""
    return f"{re.sub(r'[^a-z0-9]+', '-', name.lower()).strip('-')[:40]}-{secrets.token_hex(4)}"


def checked_job_id(logical: LogicalPlan, settings: Settings, options: CheckpointOptions) -> str:
    """Check a topology and its outputs, before Ray or anything else is started; return an id.

    Raises:
        WhaleError: as `preflight`; or its folder of checkpoints is that of another job.
    """
    job_id = new_job_id(logical.name)
    try:
        preflight(
            logical,
            checkpoints=bool(settings.checkpoints.url),
            restores=options.restore is not None,
        )
    except OutputError:
        options.check_folder(job_id, logical.name, settings)  # the output may be of its last job
        raise
    return job_id
