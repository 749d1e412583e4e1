"""What a job keeps in Ray's key-value store, which lasts as long as the cluster.

These are the envelope, with which actors start and restart, and the controller's journal. Both
outlive the driver.
"""

from __future__ import annotations

import pickle

import cloudpickle
from ray.experimental import internal_kv

from ...configs.errors import JobError
from ...control.journal import Entry, Journal
from ..envelope import Envelope

_NAMESPACE = "whale-ray"


def keep_envelope(job_id: str, envelope: Envelope) -> None:
    """Store a job's envelope for its actors, also for those that Ray restarts."""
    packed = pickle.dumps(envelope)
    internal_kv._internal_kv_put(f"envelope:{job_id}", packed, namespace=_NAMESPACE)


def fetch_envelope(job_id: str) -> Envelope:
    """Return a job's envelope; raises JobError if the job has ended."""
    packed = internal_kv._internal_kv_get(f"envelope:{job_id}", namespace=_NAMESPACE)
    if packed is None:
        msg = f"job {job_id!r} has ended; its actors cannot start again"
        raise JobError(msg)
    envelope = pickle.loads(packed)  # noqa: S301  # written by our own driver
    assert isinstance(envelope, Envelope)
    return envelope


def forget(job_id: str) -> None:
    """Remove a job's envelope and journal."""
    for key in (f"envelope:{job_id}", f"journal:{job_id}"):
        internal_kv._internal_kv_del(key, namespace=_NAMESPACE)


class RayJournal(Journal):
    """The journal of job `job_id`."""

    def __init__(self, job_id: str) -> None:
        self._job_id = job_id
        self._key = f"journal:{job_id}"

    def read(self) -> Entry | None:
        """See `Journal.read`."""
        packed = internal_kv._internal_kv_get(self._key, namespace=_NAMESPACE)
        if packed is None:
            return None
        entry = pickle.loads(packed)  # noqa: S301  # written by a controller of this job
        assert isinstance(entry, Entry)
        return entry

    def write(self, entry: Entry) -> None:
        """See `Journal.write`."""
        internal_kv._internal_kv_put(self._key, cloudpickle.dumps(entry), namespace=_NAMESPACE)

    def erase(self) -> None:
        """See `Journal.erase`."""
        forget(self._job_id)
