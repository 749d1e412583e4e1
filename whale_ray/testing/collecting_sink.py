"""A sink whose published rows a test can read."""

from __future__ import annotations

import copy
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakValueDictionary

from ..configs.errors import OutputError
from ..operators.sinks.base import Delivery, Sink, SinkResult, SinkWriter, Staged
from ..operators.sinks.collect import collect

if TYPE_CHECKING:
    from typing import Self

    import pyarrow

    from ..configs.settings import Settings
    from ..operators.process import InstanceContext


class _Holder:
    """Holds the result; it is deleted together with the test's sink."""

    result: SinkResult | None = None


_HOLDERS: WeakValueDictionary[str, _Holder] = WeakValueDictionary()


class CollectingSink(Sink):
    """A sink that keeps the rows that a job in this process publishes.

    As with every sink, there are no rows before the job has ended without an error. The rows of a
    job that publishes in another process (on Ray) are in `job.results(id)` instead.

    Args:
        max_bytes: the most bytes to collect; by default the setting `runtime.collect_bytes_max`.

    Example:
        >>> from whale_ray import Batch
        >>> from whale_ray.testing import CollectingSink, write_all
        >>> sink = CollectingSink()
        >>> result = write_all(sink, [Batch.from_rows([{"x": 1}, {"x": 2}])])
        >>> sink.rows
        [{'x': 1}, {'x': 2}]
    """

    delivery: ClassVar[Delivery | None] = "exactly once"

    def __init__(self, max_bytes: int | None = None) -> None:
        self._sink = collect(max_bytes)
        self._key = uuid.uuid4().hex
        self._holder = _Holder()
        _HOLDERS[self._key] = self._holder

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows published, in the order of the sink's instances.

        Raises:
            OutputError: nothing was published in this process.
        """
        return list(self.table.to_pylist())

    @property
    def table(self) -> pyarrow.Table:
        """The rows published, as an Arrow table.

        Raises:
            OutputError: nothing was published in this process.
        """
        if self._holder.result is None:
            msg = (
                "this CollectingSink received nothing: the job has not ended well, or it "
                "published in another process; then use job.results(id)"
            )
            raise OutputError(msg)
        return self._holder.result.to_arrow()

    def configured(self, settings: Settings) -> Self:
        """Return a copy with the limit `runtime.collect_bytes_max`, unless one was given."""
        configured = copy.copy(self)
        configured._sink = self._sink.configured(settings)
        return configured

    def prepare(self, token: str, *, bounded: bool) -> None:
        """Refuse an unbounded job: rows are there at its end only."""
        self._sink.prepare(token, bounded=bounded)

    def open(self, context: InstanceContext, token: str) -> SinkWriter:
        """Open one instance's buffer."""
        return self._sink.open(context, token)

    def publish(self, token: str, staged: Sequence[Staged]) -> SinkResult:
        """Keep the rows for the test's sink."""
        return self._keep(self._sink.publish(token, staged))

    def publish_partial(self, token: str, staged: Sequence[Staged]) -> SinkResult:
        """Keep the rows of an input that was not read to its end."""
        return self._keep(self._sink.publish_partial(token, staged))

    def recover(self, token: str, staged: Sequence[Staged], *, bounded: bool) -> None:
        """Refuse an unbounded job; see `Sink.recover`."""
        self._sink.recover(token, staged, bounded=bounded)

    def _keep(self, result: SinkResult) -> SinkResult:
        holder = _HOLDERS.get(self._key)
        if holder is not None:
            holder.result = result
        return result

    def describe(self) -> str:
        """Return the description that `explain` prints."""
        return "collect for a test"

    def __getstate__(self) -> dict[str, Any]:
        """Leave the holder out; in this process, a copy finds it by its key."""
        return {"_sink": self._sink, "_key": self._key}
