"""Ray Datasets as sources and sinks.

Source: the dataset is executed once, at submission, and its Arrow blocks are read in place from
Ray's object store. Sink: a job's rows become a dataset whose blocks the calling process owns.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, cast

from ..configs.errors import InputError, UsageError
from ..configs.extras import require_extra
from ..operators.sinks.base import Delivery, Sink, SinkResult, SinkWriter, Staged
from ..operators.sinks.files import parquet
from ..operators.sources.arrow_reader import supported_schema
from ..operators.sources.base import Source, SourceReader
from .blocks import FileSource, ObjectRefs, ObjectSource, in_order_of
from .failures import root_of
from .folders import REMEDY, new_folder, writing_there

if TYPE_CHECKING:
    import pyarrow as pa
    from ray.data import Dataset

    from ..configs.settings import Settings
    from ..operators.process import InstanceContext
    from ..operators.sinks.files import FileSink
    from ..transport.wire.batch import Batch
    from ..transport.wire.types import Schema

_BLOCK_BYTES = 64 << 20


def ray_dataset_source(dataset: Dataset) -> Source:
    """Read a Ray Dataset.

    The dataset is executed at submission, unless it is materialized already, and keeps the order of
    its blocks. Rows are read in this order; with several instances, blocks are assigned
    round-robin.

    Raises:
        UsageError: it is no Dataset.
        InputError: a column has a type that is not supported. If the dataset's columns are not
            known before it is executed, the error is raised at submission.
    """
    if not callable(getattr(dataset, "materialize", None)):
        msg = f"sources.ray_dataset() got a {type(dataset).__name__}: pass a ray.data.Dataset"
        raise UsageError(msg)
    return RayDatasetSource(dataset)


@dataclass(frozen=True, eq=False)
class RayDatasetSource(Source):
    """A Ray Dataset in the driver, before submission."""

    dataset: Dataset

    def check(self) -> None:
        """Raise `InputError` for an unsupported column, if the columns are known."""
        self.schema()

    def schema(self) -> Schema | None:
        """Return the columns; None if they are not known before the dataset is executed."""
        arrow = _arrow_schema(self.dataset.schema(fetch_if_missing=False))
        return _whale_schema(arrow) if arrow is not None and _has_all_types(arrow) else None

    def materialize(self, *, cluster: bool) -> Source:
        """Execute the dataset and return a source of its blocks.

        Args:
            cluster: whether the workers are Ray actors: then Ray objects, else files.

        Raises:
            InputError: Ray cannot execute the dataset.
        """
        import pyarrow as pa
        from ray.exceptions import RayError

        try:
            arrow, refs = self._execute()
        except (RayError, pa.ArrowException, ValueError) as error:  # a function's, or the blocks'
            msg = f"{self.describe()}: Ray cannot execute it: {root_of(error)}"
            raise InputError(msg) from error
        columns = _whale_schema(arrow)
        if cluster:
            return ObjectSource(ObjectRefs(refs), columns, self.describe())
        return _as_files(refs, columns, self.describe())

    def _execute(self) -> tuple[pa.Schema, list[Any]]:
        """Return the columns and Ray's references to the blocks, as Arrow tables."""
        from ray.data.dataset import MaterializedDataset

        with _blocks_in_order(self.dataset), quiet_ray_data():
            done = isinstance(self.dataset, MaterializedDataset)
            dataset = self.dataset if done else self.dataset.materialize()
            schema, refs = _arrow_schema(dataset.schema()), dataset.to_arrow_refs()
        # Blocks of pandas frames, and a dataset without blocks, have no Arrow schema. Ray's is the
        # first block's, whose nulls have no type where all its values of a column are missing.
        known = schema is not None and _has_all_types(schema)
        return schema if known else _schema_of_tables(refs), refs

    def resumption(self) -> str:
        """Return that the source of its blocks seeks."""
        return "executes the dataset again and seeks to the block"

    def open(self, context: InstanceContext) -> SourceReader:
        """Raise UsageError: only the source that `materialize` returns can be read."""
        _only_in_driver(self.describe())

    def __reduce__(self) -> NoReturn:
        _only_in_driver(self.describe())

    def describe(self) -> str:
        """Return the dataset's name, if it has one."""
        name = getattr(self.dataset, "name", None)
        return f"Ray Dataset {name}" if name else "Ray Dataset"


def _only_in_driver(what: str) -> NoReturn:
    msg = f"a {what} can only be read where it was made; submit the topology from there"
    raise UsageError(msg)


def _arrow_schema(schema: Any) -> pa.Schema | None:
    import pyarrow as pa

    base = getattr(schema, "base_schema", schema)
    return base if isinstance(base, pa.Schema) else None


def _has_all_types(schema: pa.Schema) -> bool:
    return not any(str(kind) == "null" for kind in schema.types)


def _schema_of_tables(refs: Sequence[Any]) -> pa.Schema:
    import pyarrow as pa
    import ray

    schemas = [ray.get(ref).schema for ref in refs]
    if not schemas:
        msg = "the Ray Dataset has no blocks and so no columns; it needs at least one"
        raise InputError(msg)
    return pa.unify_schemas(schemas, promote_options="permissive")


def _whale_schema(arrow: pa.Schema) -> Schema:
    from ..transport.wire.types import Schema

    return Schema.from_arrow(supported_schema(arrow))


@contextmanager
def _blocks_in_order(dataset: Dataset) -> Iterator[None]:
    """Preserve the order of blocks in this execution, then restore the dataset's options."""
    options = dataset.context.execution_options
    before = options.preserve_order
    options.preserve_order = True
    try:
        yield
    finally:
        options.preserve_order = before


@contextmanager
def quiet_ray_data() -> Iterator[None]:
    """Silence Ray Data's log and progress bars; its failures are raised as exceptions."""
    from ray.data import DataContext

    logger = logging.getLogger("ray.data")
    context = DataContext.get_current()
    level, bars = logger.level, context.enable_progress_bars
    logger.setLevel(logging.CRITICAL)
    context.enable_progress_bars = False
    try:
        yield
    finally:
        logger.setLevel(level)
        context.enable_progress_bars = bars


def _as_files(refs: Sequence[Any], columns: Schema, origin: str) -> FileSource:
    import pyarrow.parquet as pq
    import ray

    folder = new_folder("dataset")
    names = tuple(f"{number:05d}.parquet" for number in range(len(refs)))
    for name, ref in zip(names, refs, strict=True):
        block = in_order_of(columns.names, ray.get(ref), origin)
        with writing_there():
            pq.write_table(block, os.path.join(folder, name), compression="zstd")
    return FileSource(folder, names, columns, origin)


@dataclass(frozen=True)
class RayDatasetResult(SinkResult):
    """The rows that a job published through `sinks.ray_dataset`."""

    def to_ray_dataset(self) -> Dataset:
        """Return the rows as a Ray Dataset; see `ray_bridge.to_ray_dataset`."""
        return to_ray_dataset(self)


def to_ray_dataset(rows: SinkResult | pa.Table) -> Dataset:
    """Return rows as a Ray Dataset with the same types, values and order.

    The rows pass through this process, which owns the blocks: the dataset can be used while this
    process is alive.

    Args:
        rows: a job's result, or an Arrow table.

    Raises:
        UsageError: this process is not connected to Ray.
        ResourceError: Ray Data, an extra, is not installed.
    """
    require_extra("data", "a Ray Dataset")
    import ray
    import ray.data

    if not ray.is_initialized():
        msg = "this process is not connected to Ray; call ray.init() first"
        raise UsageError(msg)
    table = rows.to_arrow() if isinstance(rows, SinkResult) else rows
    return ray.data.from_blocks(_pieces(table))


def _pieces(table: pa.Table) -> list[pa.Table]:
    """Cut a table into blocks of about 64 MiB; at least one, for the schema."""
    count = max(1, -(-table.nbytes // _BLOCK_BYTES))
    rows = max(1, -(-table.num_rows // count))
    starts = range(0, max(1, table.num_rows), rows)
    return [table.slice(start, rows).combine_chunks() for start in starts]


def ray_dataset_sink() -> Sink:
    """Keep the rows for a Ray Dataset: `job.results("out").to_ray_dataset()`.

    They are stored in a temporary folder, which is removed when the submitting process ends.

    Raises:
        ResourceError: Ray Data, an extra, is not installed.
    """
    require_extra("data", "sinks.ray_dataset", "take sinks.parquet")
    return HandoverSink("Ray Dataset", RayDatasetResult)


@dataclass(frozen=True)
class HandoverSink(Sink):
    """Parquet files in a temporary folder of the submitting process.

    That folder ends with the process, so what is staged for an epoch is kept with the checkpoint.

    Attributes:
        target: the kind of the result in words, for `explain`.
        result: the class of the result.
        files: the sink that writes the files; None before `configured`.
    """

    target: str
    result: type[SinkResult]
    files: FileSink | None = field(default=None, repr=False)

    outlives_driver = False
    delivery: ClassVar[Delivery | None] = "exactly once"

    def configured(self, settings: Settings) -> HandoverSink:
        """Create the folder; called in the submitting process."""
        folder = os.path.join(new_folder("result"), "rows")
        files = replace(cast("FileSink", parquet(folder)), remedy=REMEDY)
        return type(self)(self.target, self.result, files.configured(settings))

    def prepare(self, token: str, *, bounded: bool) -> None:
        """See `Sink.prepare`."""
        self._files().prepare(token, bounded=bounded)

    def open(self, context: InstanceContext, token: str) -> SinkWriter:
        """Open one instance's part."""
        return HandoverWriter(self._files().open(context, token))

    def publish(self, token: str, staged: Sequence[Staged]) -> SinkResult:
        """Publish the parts."""
        files = self._files()
        return self._result_of(files.publish(token, files.with_files(token, staged)))

    def publish_partial(self, token: str, staged: Sequence[Staged]) -> SinkResult:
        """Publish the parts of an input that was not read to its end."""
        files = self._files()
        return self._result_of(files.publish_partial(token, files.with_files(token, staged)))

    def recover(self, token: str, staged: Sequence[Staged], *, bounded: bool) -> None:
        """Check the files; parts of epochs come back with `staged`."""
        in_files = [part for part in staged if part.payload is None]
        self._files().recover(token, in_files, bounded=bounded)

    def _result_of(self, published: SinkResult) -> SinkResult:
        return self.result(**{one.name: getattr(published, one.name) for one in fields(SinkResult)})

    def discard(self, token: str) -> None:
        """Remove the staged files of an attempt."""
        self._files().discard(token)

    @property
    def staged_as(self) -> str:
        """See `Sink.staged_as`."""
        return self.target

    def describe(self) -> str:
        """Return the kind of the result."""
        return self.target

    def _files(self) -> FileSink:
        if self.files is None:
            msg = f"the {self.target} sink was not given to a job; pass it to `sink` of a stream"
            raise UsageError(msg)
        return self.files


class HandoverWriter(SinkWriter):
    """Writes files, and hands those of epochs over as bytes."""

    def __init__(self, files: SinkWriter) -> None:
        self._files = files

    def write(self, batch: Batch) -> None:
        """See `SinkWriter.write`."""
        self._files.write(batch)

    def stage(self) -> Staged:
        """See `SinkWriter.stage`."""
        return self._files.stage()

    def stage_epoch(self, epoch: int) -> Staged | None:
        """See `SinkWriter.stage_epoch`."""
        stage = self.cut_epoch(epoch)
        return None if stage is None else stage()

    def cut_epoch(self, epoch: int) -> Callable[[], Staged] | None:
        """See `SinkWriter.cut_epoch`."""
        stage = self._files.cut_epoch(epoch)
        return None if stage is None else _StagedAsBytes(stage)

    def abort(self) -> None:
        """See `SinkWriter.abort`."""
        self._files.abort()

    def publish_part(self) -> Staged | None:
        """See `SinkWriter.publish_part`."""
        return self._files.publish_part()


class _StagedAsBytes:
    """Stages a file of an epoch, and hands its bytes over in its place; the same at each call.

    A call may end at any point and be repeated: the file is removed only once its bytes are kept.
    """

    def __init__(self, stage: Callable[[], Staged]) -> None:
        self._stage = stage
        self._path = ""
        self._staged: Staged | None = None

    def __call__(self) -> Staged:
        if self._staged is None:
            file = self._stage()
            assert file.path is not None
            self._path = file.path
            with writing_there():
                payload = Path(self._path).read_bytes()
            self._staged = replace(file, path=None, inode=None, payload=payload)
        with writing_there():
            Path(self._path).unlink(missing_ok=True)
        return self._staged
