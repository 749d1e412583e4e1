"""Outputs without rows: their columns, as far as the job knows them."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace

from ..configs.errors import WhaleError
from ..operators.sinks.base import SinkResult, Staged
from ..operators.sinks.writer_schema import nullable
from ..plan.columns import known_columns
from ..plan.logical import MAIN, LogicalPlan
from ..worker.staged_output import StagedOutput

_log = logging.getLogger(__name__)


def staged_of(sink_id: str, workers: Iterable[StagedOutput], logical: LogicalPlan) -> list[Staged]:
    """Return what all instances of a sink staged.

    If none of them received a row, each part gets the schema that its rows would have had, if that
    is known: an output without rows has columns, too.
    """
    workers = tuple(workers)
    staged = [part for worker in workers for part in worker.parts.get(sink_id, ())]
    if any(part.schema is not None for part in staged):
        return staged
    learnt = {output: schema for worker in workers for output, schema in worker.columns.items()}
    try:
        columns = known_columns(logical, learnt)[sink_id, MAIN]
    except (WhaleError, OSError):  # an input was removed meanwhile
        columns = None
    if columns is None:
        return staged
    schema = nullable(columns.to_arrow()).serialize().to_pybytes()
    return [replace(part, schema=schema) for part in staged]


def warn_without_columns(sink_id: str, result: SinkResult) -> None:
    """Log a warning if an output has neither rows nor columns."""
    if result.path is not None and not result.parts:
        _log.warning(
            "sink %r got no row, and the columns are not known: %s holds no part; declare schema= "
            "where its rows are made to have an empty one",
            sink_id,
            result.path,
        )
