"""The message for one worker, and the share of one instance."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from ...configs.errors import CorruptedMessageError
from .batch import Batch
from .header import STOP_FLAG, Header
from .types import Schema

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class AddressedTuple(NamedTuple):
    """What the dispatcher hands to one instance."""

    instance: int
    batch: Batch


class WorkerMessage(NamedTuple):
    """A batch, serialized once, and the instances of a worker or host that it is for.

    Attributes:
        header: as received.
        destinations: uint32 (k, 2), pairs (instance, row end): instance i has the rows from the
            pair before to its own row end; None when every instance has all rows.
        batch: views of the frame.
    """

    header: Header
    destinations: npt.NDArray[np.uint32] | None
    batch: Batch

    def addressed(self, instances: Iterable[int]) -> Iterator[AddressedTuple]:
        """Iterate over the shares of these instances; instances without rows are left out."""
        if self.destinations is None:
            for instance in instances if self.batch.num_rows else ():
                yield AddressedTuple(instance, self.batch)
            return
        local = frozenset(instances)
        start = 0
        for instance, end in self.destinations.tolist():
            if instance in local and end > start:
                yield AddressedTuple(instance, self.batch.slice(start, end))
            start = end


class SchemaMessage(NamedTuple):
    """Announces a schema, which data messages then name by its id."""

    header: Header
    schema: Schema

    def register(self, schemas: dict[int, Schema]) -> None:
        """Add the schema to those that a decoder knows.

        Raises:
            CorruptedMessageError: another schema has the same id.
        """
        known = schemas.setdefault(self.header.schema_id, self.schema)
        if known != self.schema:
            msg = (
                f"schema id {self.header.schema_id:#010x} stands for both [{known}] and "
                f"[{self.schema}]; rename a column"
            )
            raise CorruptedMessageError(msg)


class WatermarkMessage(NamedTuple):
    """A source's watermark, and its end, for which no data message was due."""

    header: Header


class MarkerMessage(NamedTuple):
    """Divides a source's rows into those that an epoch's snapshot covers, and those after it."""

    header: Header

    @property
    def epoch(self) -> int:
        """The number of the epoch."""
        return self.header.origin_ns

    @property
    def stops(self) -> bool:
        """Whether sources read nothing after it."""
        return bool(self.header.flags & STOP_FLAG)


Message = WorkerMessage | SchemaMessage | WatermarkMessage | MarkerMessage
