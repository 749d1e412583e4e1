"""Streams with a grouping, which says which instance of the next operator gets which row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ...plan.logical import LEFT, RIGHT
from . import misuse
from .checks import describe_value, mistake
from .processes import WantedResources, add_process, check_same_key
from .readable import Readable

if TYPE_CHECKING:
    from ...operators.process import CoProcess, Process
    from .streams import Stream


class GroupedStream(Readable):
    """A stream with a grouping: `process` it, `connect` it, or map it on other instances."""

    def __repr__(self) -> str:
        grouping = self._grouping.describe()
        return f"GroupedStream({self.id!r} of topology {self._registry.name!r}, {grouping})"

    def connect(self, other: GroupedStream) -> ConnectedStream:
        """Let one operator read two streams: this one is its left, `other` its right.

        Raises:
            TopologyError: `other` is no grouped stream of the same topology, or has another key.
        """
        if isinstance(other, Readable) and not isinstance(other, GroupedStream):
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
        """Run an operator with state of its own: one object of a `Process` class per instance.

        Args:
            operator: the class, or a function without arguments that makes an object of it.
            id: a name for the operator; chosen if left out.
            parallelism: number of instances; one per worker if left out.
            event_time_order: hand rows over in the order of their event times; if left out, where
                the stream has event times.
            num_cpus: processors that an instance reserves on Ray. A worker reserves the sum of what
                its instances ask for; without any, 1 on a Ray that others use, too.
            num_gpus: the same for GPUs; Ray shows them to the worker (`ray.get_gpu_ids()`).
            resources: the same for Ray's custom resources, by name. Elsewhere than on Ray all
                three mean nothing, and that is told.

        Raises:
            TopologyError: what was passed does not fit, and how to mend it.
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

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_"):  # such as what `copy` looks for before there is a grouping
                raise AttributeError(misuse.other_name("GroupedStream", name))
            text = misuse.on_grouped(name, self._grouping.describe())
            if text:
                raise mistake(self.id, text)
            raise AttributeError(misuse.other_name("GroupedStream", name, self._columns() or ()))


class ConnectedStream:
    """Two grouped streams that one operator reads: `process` them."""

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
        """Run an operator with two inputs: one object of a `CoProcess` class per instance.

        Args:
            operator: the class, or a function without arguments that makes an object of it.
            id: a name for the operator; chosen if left out.
            parallelism: number of instances; one per worker if left out.
            event_time_order: merge both streams by event time, left before right where equal; if
                left out, where both have event times.
            num_cpus: processors that an instance reserves on Ray. A worker reserves the sum of what
                its instances ask for; without any, 1 on a Ray that others use, too.
            num_gpus: the same for GPUs; Ray shows them to the worker (`ray.get_gpu_ids()`).
            resources: the same for Ray's custom resources, by name. Elsewhere than on Ray all
                three mean nothing, and that is told.

        Raises:
            TopologyError: what was passed does not fit, and how to mend it.
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
