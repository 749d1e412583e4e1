"""Every metric that is exported.

Names and units follow Prometheus' conventions: base units, `_total` after what only grows
(https://prometheus.io/docs/practices/naming). All exporters, the dashboard and the documents use
this catalogue, so that a metric has one name everywhere.
"""

from __future__ import annotations

from .of_hosts import LINKS, RELAYS, THROTTLED, TRANSPORTS, TREES, WORKERS
from .of_jobs import CHECKPOINTS, JOB
from .of_operators import INSTANCES, OPERATORS

CATALOGUE = (
    *(JOB, CHECKPOINTS, OPERATORS, INSTANCES, WORKERS),
    *(RELAYS, LINKS, TREES, THROTTLED, TRANSPORTS),
)
"""All groups, in the order of the documents."""
