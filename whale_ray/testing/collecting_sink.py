"""A sink whose rows the test that made it can read."""

from __future__ import annotations

import copy
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from ..configs.errors import OutputError
from ..operators.sinks.base import Sink, SinkResult, SinkWriter, Staged
from ..operators.sinks.collect import collect

if TYPE_CHECKING:
    from typing import Self

    import pyarrow

    from ..configs.settings import Settings
    from ..operators.process import InstanceContext


class _Holder:
    """Where the result is put; it lives as long as the sink that the test holds."""

    result: SinkResult | None = None


_HOLDERS: WeakValueDictionary[str, _Holder] = WeakValueDictionary()


class CollectingSink(Sink):
    """Keeps what a job in this process published.

    Nothing is there before the job has ended well, as with every sink. Jobs that publish in
    another process (on Ray) give their rows through `job.results(id)` instead.

    Args:
        max_bytes: how much may be collected; the setting `runtime.collect_bytes_max` if left out.

    Example:
        >>> from whale_ray import Batch
        >>> from whale_ray.testing import CollectingSink, write_all
        >>> sink = CollectingSink()
        >>> result = write_all(sink, [Batch.from_rows([{"x": 1}, {"x": 2}])])
        >>> sink.rows
        [{'x': 1}, {'x': 2}]
    """

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
        """The same as an Arrow table."""
        if self._holder.result is None:
            msg = (
                "this CollectingSink received nothing: the job has not ended well, or it "
                "published in another process; then use job.results(id)"
            )
            raise OutputError(msg)
        return self._holder.result.to_arrow()

    def configured(self, settings: Settings) -> Self:
        """Return this sink with `runtime.collect_bytes_max` unless a limit was given."""
        configured = copy.copy(self)
        configured._sink = self._sink.configured(settings)
        return configured

    def open(self, context: InstanceContext, token: str) -> SinkWriter:
        """Open one instance's buffer."""
        return self._sink.open(context, token)

    def publish(self, token: str, staged: Sequence[Staged]) -> SinkResult:
        """Keep the rows, where the sink that the test holds finds them."""
        return self._keep(self._sink.publish(token, staged))

    def publish_partial(self, token: str, staged: Sequence[Staged]) -> SinkResult:
        """Keep the rows of an input that was not read to its end."""
        return self._keep(self._sink.publish_partial(token, staged))

    def _keep(self, result: SinkResult) -> SinkResult:
        holder = _HOLDERS.get(self._key)
        if holder is not None:
            holder.result = result
        return result

    def describe(self) -> str:
        """Return what it is."""
        return "collect for a test"

    def __getstate__(self) -> dict[str, Any]:
        """Leave the holder out: a copy finds it by its key, in this process only."""
        return {"_sink": self._sink, "_key": self._key}
