"""Sources for rows of Spark DataFrames and Ray Datasets: Ray objects, or files.

A Spark DataFrame or a Ray Dataset exists only in the driver. At submission it becomes one of

* `ObjectSource`: Arrow tables in Ray's object store, read in place by worker actors on the node;
* `FileSource`: Parquet files, for workers that are not Ray actors, or rows whose values the object
  store cannot represent exactly.

Blocks (objects or files) are assigned to instances round-robin, in their order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..configs.errors import InputError, ResourceError
from ..operators.sources.arrow_reader import ArrowReader
from ..operators.sources.base import Source, SourceReader
from ..operators.sources.files import START_ANEW
from ..operators.sources.progress import Place, Progress
from .failures import root_of
from .folders import remove_folder

if TYPE_CHECKING:
    import pyarrow as pa

    from ..operators.process import InstanceContext
    from ..operators.snapshots import Position
    from ..transport.clock import Clock
    from ..transport.wire.types import Schema

_AHEAD = 2
"""How many blocks a reader prefetches to its node."""

_POLL_NS = 1_000_000
_BATCH_ROWS = 8192


class ObjectRefs:
    """References to Ray objects that can be pickled by any pickler.

    An ordinary pickle of a reference loses the owner of the object, which can then not be read
    again; Ray's own pickle keeps the owner. The references are unpickled only where objects are
    read, since the plan also passes through processes without a connection to Ray.
    """

    def __init__(self, refs: Sequence[Any]) -> None:
        self._refs: tuple[Any, ...] | None = tuple(refs)
        self._count = len(refs)
        self._packed = b""

    def __len__(self) -> int:
        return self._count

    def unpack(self) -> tuple[Any, ...]:
        """Return Ray's references; the process must be connected to Ray."""
        if self._refs is None:
            import ray.cloudpickle

            self._refs = tuple(ray.cloudpickle.loads(self._packed))
        return self._refs

    def release(self) -> None:
        """Release the references, in the process that owns the objects.

        Ray frees the objects when no other reference exists: no reader, and no dataset of the
        user's.
        """
        import ray

        if self._packed and self._refs is not None and ray.is_initialized():
            worker: Any = ray._private.worker.global_worker
            for ref in self._refs:
                # Ray's pickle adds a reference that it never removes, for possible readers.
                worker.core_worker.remove_object_ref_reference(ref)
            self._packed = b""
        self._refs = ()

    def __getstate__(self) -> tuple[int, bytes]:
        if not self._packed and self._refs is not None:
            import ray.cloudpickle

            self._packed = ray.cloudpickle.dumps(self._refs)
        return self._count, self._packed

    def __setstate__(self, state: tuple[int, bytes]) -> None:
        self._count, self._packed = state
        self._refs = None


@dataclass(frozen=True, eq=False)
class ObjectSource(Source):
    """Arrow tables in Ray's object store.

    The process that submitted the job owns the objects: they can be read, also by a new attempt,
    only while that process is alive. A detached job therefore cannot read them.

    Attributes:
        refs: references to `pyarrow.Table`s.
        columns: the columns of the source; tables are cast to it.
        origin: the name of the DataFrame or dataset, for messages.
    """

    refs: ObjectRefs
    columns: Schema
    origin: str

    outlives_driver = False

    def schema(self) -> Schema:
        """Return the columns."""
        return self.columns

    def open(self, context: InstanceContext) -> SourceReader:
        """Open this instance's objects."""
        return _ObjectReader(self, _progress(len(self.refs), context, None), context.clock)

    def open_at(self, context: InstanceContext, positions: Sequence[Position]) -> SourceReader:
        """Open this instance's share of the objects left; see `_check_blocks`."""
        _check_blocks(self.origin, len(self.refs), positions)
        return _ObjectReader(self, _progress(len(self.refs), context, positions), context.clock)

    def resumption(self) -> str:
        """Return that it seeks."""
        return "seeks to the row"

    def describe(self) -> str:
        """Return the origin."""
        return self.origin

    def release(self) -> None:
        """Release the objects after the end of the job; see `ObjectRefs.release`."""
        self.refs.release()


@dataclass(frozen=True)
class FileSource(Source):
    """Temporary Parquet files, whose columns are matched to `columns` by position.

    Attributes:
        folder: the folder of the files, which is removed at the end of the submitting process.
        names: the names of the files, in the order of the rows.
        columns: the columns of the source.
        origin: the name of the DataFrame or dataset, for messages.
    """

    folder: str
    names: tuple[str, ...]
    columns: Schema
    origin: str

    outlives_driver = False

    def schema(self) -> Schema:
        """Return the columns."""
        return self.columns

    def open(self, context: InstanceContext) -> SourceReader:
        """Open this instance's files."""
        progress = _progress(len(self.names), context, None)
        return ArrowReader(self._batches(progress), progress)

    def open_at(self, context: InstanceContext, positions: Sequence[Position]) -> SourceReader:
        """Open this instance's share of the files left; see `_check_blocks`."""
        _check_blocks(self.origin, len(self.names), positions)
        progress = _progress(len(self.names), context, positions)
        return ArrowReader(self._batches(progress), progress)

    def resumption(self) -> str:
        """Return that a part of a file is read again."""
        return "seeks to the partition and skips rows"

    def describe(self) -> str:
        """Return the origin."""
        return self.origin

    def release(self) -> None:
        """Remove the files after the end of the job."""
        remove_folder(self.folder)

    def _batches(self, progress: Progress) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        schema = self.columns.to_arrow()
        for number, place in progress.units(0, len(self.names)):
            path = f"{self.folder}/{self.names[number]}"
            try:
                with pq.ParquetFile(path, pre_buffer=False) as file:
                    total = file.metadata.num_rows
                    check_rows(self.origin, number, total, place)
                    progress.enter(number, {"rows": 0, "of": total})
                    batches = file.iter_batches(_BATCH_ROWS)
                    for batch in behind(place, batches, progress):
                        yield fitted(batch, schema, self.origin)
            except (OSError, pa.ArrowException) as error:
                msg = (
                    f"{self.origin}: its hand-over file {path} cannot be read "
                    f"({error}); submit the job again"
                )
                raise InputError(msg) from error


class _ObjectReader(ArrowReader):
    """Reads the objects of one instance in order, without blocking while one is fetched."""

    def __init__(self, source: ObjectSource, progress: Progress, clock: Clock) -> None:
        self._source = source
        self._schema = source.columns.to_arrow()
        self._clock = clock
        self._waiting = False
        super().__init__(self._in_turn(progress), progress)

    def next_ready_ns(self) -> int | None:
        """Return when to read again, in ns, while an object is being fetched to this node."""
        return self._clock.monotonic_ns() + _POLL_NS if self._waiting else None

    def _in_turn(self, progress: Progress) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        import ray

        nothing = pa.RecordBatch.from_pylist([], schema=self._schema)
        mine = list(progress.units(0, len(self._source.refs)))
        refs = self._source.refs.unpack() if mine else ()
        blocks = [(number, refs[number], place) for number, place in mine]
        for index, (number, ref, place) in enumerate(blocks):
            ahead = [later for _, later, _ in blocks[index : index + 1 + _AHEAD]]
            while ref not in ray.wait(ahead, num_returns=len(ahead), timeout=0)[0]:
                self._waiting = True
                yield nothing
            self._waiting = False
            yield from self._table(number, ref, place, progress)

    def _table(
        self, number: int, ref: Any, place: Place | None, progress: Progress
    ) -> Iterator[pa.RecordBatch]:
        import ray
        from ray.exceptions import RayError

        try:
            table = ray.get(ref)
        except RayError as error:
            msg = (
                f"{self._source.origin}: block {number} of {len(self._source.refs)} is lost "
                f"({root_of(error)}); the process that submitted the job must live until it ends"
            )
            raise ResourceError(msg) from error
        check_rows(self._source.origin, number, table.num_rows, place)
        progress.enter(number, {"rows": 0, "of": table.num_rows})
        table = in_order_of(self._schema.names, table, self._source.origin)
        batches = table.to_batches(max_chunksize=_BATCH_ROWS)
        for batch in behind(place, batches, progress):
            yield fitted(batch, self._schema, self._source.origin)


def _progress(
    blocks: int, context: InstanceContext, positions: Sequence[Position] | None
) -> Progress:
    return Progress.opened(context, positions, {"blocks": blocks})


def behind(
    place: Place | None, batches: Iterable[pa.RecordBatch], progress: Progress
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a block after a place in it, and tell `progress` where they are."""
    skip, rows = place["rows"] if place else 0, 0
    for batch in batches:
        begin, rows = rows, rows + batch.num_rows
        if rows > skip:
            progress.move(max(begin, skip))
            yield batch.slice(skip - begin) if begin < skip else batch
    progress.move(rows)  # the reader may have to wait before it enters the next block


def _check_blocks(origin: str, blocks: int, positions: Sequence[Position]) -> None:
    """Raise InputError if there are other blocks than when the positions were taken."""
    for one in positions:
        if one["blocks"] != blocks:
            msg = (
                f"{origin}: it had {one['blocks']:,} blocks when a part of it was read, and has "
                f"{blocks:,} now; {START_ANEW}"
            )
            raise InputError(msg)


def check_rows(origin: str, number: int, rows: int, place: Place | None) -> None:
    """Raise InputError if a block that was begun has another number of rows."""
    if place is not None and place["of"] != rows:
        msg = (
            f"{origin}: block {number} had {place['of']:,} rows when a part of it was read, and "
            f"has {rows:,} now; {START_ANEW}"
        )
        raise InputError(msg)


def in_order_of(names: Sequence[str], table: pa.Table, origin: str) -> pa.Table:
    """Return a block with its columns in this order: blocks of a dataset may have different ones.

    A block without rows may have no columns.

    Raises:
        InputError: it has other columns.
    """
    if table.column_names == list(names) or not table.num_rows:
        return table
    if sorted(table.column_names) != sorted(names):
        raise _other_columns(origin, table.column_names, names)
    return table.select(names)


def _other_columns(origin: str, found: Sequence[str], wanted: Sequence[str]) -> InputError:
    msg = (
        f"{origin}: a block has the columns {list(found)} instead of {list(wanted)}; "
        "select the same columns in all of it"
    )
    return InputError(msg)


def fitted(batch: pa.RecordBatch, schema: pa.Schema, origin: str) -> pa.RecordBatch:
    """Return a batch with the names and types of `schema`, its columns matched by position.

    Raises:
        InputError: it has other columns, or a value that the type cannot hold exactly.
    """
    import pyarrow as pa

    if batch.num_columns != len(schema):
        raise _other_columns(origin, batch.schema.names, schema.names)
    columns = []
    for column, field in zip(batch.columns, schema, strict=True):
        try:
            columns.append(column if column.type == field.type else column.cast(field.type))
        except pa.ArrowException as error:
            msg = (
                f"{origin}: column {field.name!r} is {column.type} in one block and {field.type} "
                f"in the others, and {root_of(error)}; cast it to one type"
            )
            raise InputError(msg) from error
    return pa.RecordBatch.from_arrays(columns, schema=schema)
