"""Streams with a grouping, which sends each row to instances of the next operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ...plan.logical import LEFT, RIGHT, OnBadRows
from . import misuse
from .checks import describe_value, mistake
from .processes import WantedResources, add_process, check_same_key
from .readable import ReadableStream

if TYPE_CHECKING:
    from ...operators.groupings import Grouping
    from ...operators.process import CoProcess, Process
    from .streams import Stream


class GroupedStream(ReadableStream):
    """A stream with a grouping: `process` it, `connect` it, or apply a stateless method."""

    def __init__(self, stream: Stream, grouping: Grouping, on_null_key: OnBadRows) -> None:
        super().__init__(stream._registry, stream._source, grouping, on_null_key, stream._transport)
        self._batch_rows = stream._batch_rows
        self._stream = stream

    def __repr__(self) -> str:
        grouping = self._grouping.describe()
        return f"GroupedStream({self.id!r} of topology {self._registry.name!r}, {grouping})"

    def connect(self, other: GroupedStream) -> ConnectedStream:
        """Connect two streams as the inputs of one operator: this one left, `other` right.

        Raises:
            TopologyError: `other` is not a grouped stream of the same topology, or the keys of the
                two streams have different types.
        """
        if isinstance(other, ReadableStream) and not isinstance(other, GroupedStream):
            raise mistake(
                self.id,
                f"connect needs both streams grouped: call key_by('column') or broadcast() on"
                f" {other.id!r} first",
            )
        if not isinstance(other, GroupedStream):
            raise mistake(
                self.id,
                f"connect takes a grouped stream, such as other.broadcast(), not"
                f" {describe_value(other)}",
            )
        if other._registry is not self._registry:
            raise mistake(
                self.id,
                f"connect joins streams of one topology, but {self.id!r} belongs to"
                f" {self._registry.name!r} and {other.id!r} to another one named"
                f" {other._registry.name!r}: make both with the same Topology",
            )
        check_same_key(self._registry, self._input(LEFT), other._input(RIGHT))
        return ConnectedStream(self, other)

    def process(
        self,
        operator: Callable[[], Process],
        *,
        id: str | None = None,
        parallelism: int | None = None,
        event_time_order: bool | None = None,
        num_cpus: float | None = None,
        num_gpus: float | None = None,
        resources: Mapping[str, float] | None = None,
    ) -> Stream:
        """Add a stateful operator: each instance is an object of a `Process` class.

        Args:
            operator: the class, or a function without arguments that returns an object of it.
            id: the id of the operator; by default "process-1" and so on.
            parallelism: the number of instances; by default one per worker.
            event_time_order: whether the operator receives rows in the order of their event times;
                by default if the stream has event times.
            num_cpus: the processors that an instance reserves on Ray. A worker reserves the sum of
                its instances' requests; without any, 1 on a cluster that whale-ray has not started.
            num_gpus: the GPUs that an instance reserves; a worker gets theirs by
                `ray.get_gpu_ids()`.
            resources: Ray's custom resources that an instance reserves, by name. Without Ray these
                three have no effect, and a warning is logged.

        Raises:
            TopologyError: an argument is not valid; the message says how to correct it.
        """
        operator_id = add_process(
            self._registry,
            (self._input(),),
            operator,
            id,
            parallelism,
            event_time_order,
            WantedResources(num_cpus, num_gpus, resources),
        )
        return self._output_of(operator_id)

    def _output_of(self, operator_id: str) -> Stream:
        return self._stream._output_of(operator_id)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_"):  # such as those that `copy` looks up before `__init__` ran
                raise AttributeError(misuse.other_name("GroupedStream", name))
            text = misuse.on_grouped(name, self._grouping.describe())
            if text:
                raise mistake(self.id, text)
            raise AttributeError(misuse.other_name("GroupedStream", name, self._columns() or ()))


class ConnectedStream:
    """Two grouped streams, the inputs of one operator: `process` them."""

    def __init__(self, left: GroupedStream, right: GroupedStream) -> None:
        self._left = left
        self._right = right

    def __repr__(self) -> str:
        return f"ConnectedStream(left={self._left!r}, right={self._right!r})"

    def process(
        self,
        operator: Callable[[], CoProcess],
        *,
        id: str | None = None,
        parallelism: int | None = None,
        event_time_order: bool | None = None,
        num_cpus: float | None = None,
        num_gpus: float | None = None,
        resources: Mapping[str, float] | None = None,
    ) -> Stream:
        """Add a stateful operator with two inputs: each instance is an object of a `CoProcess`.

        The arguments that are not listed are those of `GroupedStream.process`.

        Args:
            operator: the class, or a function without arguments that returns an object of it.
            event_time_order: whether both streams are merged by event time, left before right if
                equal; by default if the streams have event times.

        Raises:
            TopologyError: an argument is not valid; the message says how to correct it.
        """
        registry = self._left._registry
        inputs = (self._left._input(LEFT), self._right._input(RIGHT))
        wanted = WantedResources(num_cpus, num_gpus, resources)
        operator_id = add_process(
            registry, inputs, operator, id, parallelism, event_time_order, wanted
        )
        return self._left._output_of(operator_id)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            text = misuse.on_connected(name)
            if text:
                raise mistake(self._left.id, text)
            raise AttributeError(misuse.other_name("ConnectedStream", name))
