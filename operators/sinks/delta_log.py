"""The log of a Delta table: what it has of a job, and one transaction that adds files.

A transaction names an application and a number (the `txn` action of Delta's protocol); the log
tells the last number of each application. A job's operator is an application of its own, its epochs
are the numbers: a commit that is repeated finds its number there. The log refuses a transaction
whose application another has advanced meanwhile, so two coordinators cannot both make one commit.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ...configs.errors import OutputError, system_reason
from ...configs.store_errors import store_reason, store_remedy
from .delta_files import DeltaFile, TableFolder

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable, Field

_DRAWN = re.compile(r"\x1b\[\d+m|↳")
_CONSTRAINT = "delta.constraints."
_RULES_OF_COLUMNS = ("delta.invariants", "delta.generationExpression", "delta.identity.")
_TRIES_MAX = 100
"""How often a transaction is tried, since others have changed the table meanwhile."""


@dataclass(frozen=True)
class DeltaColumns:
    """The columns of a table.

    Attributes:
        types: Delta's type of each, such as `long`, by name.
        partition_by: those by which the table is partitioned.
        required: those that take no null.
        rules: what else the table demands of its writers, and this sink does not keep to.
        is_append_only: rows are never removed.
    """

    types: dict[str, str]
    partition_by: tuple[str, ...]
    required: frozenset[str] = frozenset()
    rules: tuple[str, ...] = ()
    is_append_only: bool = False


@dataclass(frozen=True)
class DeltaLog:
    """The log of the table in a folder, which may not be there yet."""

    folder: TableFolder

    def columns(self) -> DeltaColumns | None:
        """Return the table's columns; None if there is no table.

        Raises:
            OutputError: the table cannot be read.
        """
        with self._errors():
            table = self._open()
            return None if table is None else _columns_of(table)

    def last(self, application: str) -> int:
        """Return the last number that an application has committed, -1 if none.

        Raises:
            OutputError: the table cannot be read.
        """
        with self._errors():
            table = self._open()
            return -1 if table is None else _last(table, application)

    def named(self) -> frozenset[str]:
        """Return the names of all files that the log still names, also of those it has removed.

        Older versions of the table consist of the latter, until Delta's VACUUM removes them.

        Raises:
            OutputError: the table cannot be read.
        """
        with self._errors():
            table = self._open()
            if table is None:
                return frozenset()
            removed = table.vacuum(retention_hours=0, enforce_retention_duration=False)
            named = [*table.file_uris(), *removed]
            return frozenset(name.rpartition("/")[2] for name in named)

    def add(
        self,
        files: Sequence[DeltaFile],
        schema: pa.Schema,
        application: str,
        number: int,
        *,
        mode: Literal["append", "overwrite"],
        partition_by: Sequence[str],
    ) -> bool:
        """Add files in one transaction, unless the log has that of this number already.

        The table is created if it is missing. Others may change it at the same time.

        Args:
            files: complete ones in the table's folder.
            schema: of the rows, with Delta's types.
            application: who commits.
            number: of the commit.
            mode: whether the files replace all others.
            partition_by: for a table that is created.

        Returns:
            Whether it was added now.

        Raises:
            OutputError: the table has other columns, or cannot be written; it is unknown whether
                the files were added, which asking again finds out.
        """
        with self._errors():
            for _ in range(_TRIES_MAX):
                table = self._open()
                if table is not None and _last(table, application) >= number:
                    return False
                since = -1 if table is None else table.version()
                if table is not None:
                    self.refuse_others(_columns_of(table), schema, partition_by)
                if self._try(table, files, schema, application, number, mode, partition_by):
                    self.folder.sync_log(since)
                    return True
        msg = (
            f"other jobs keep changing the Delta table {self.folder.url!r} at the same time, "
            f"{_TRIES_MAX} times; stop some of them"
        )
        raise OutputError(msg)

    def refuse_others(
        self, columns: DeltaColumns, schema: pa.Schema, partition_by: Sequence[str]
    ) -> None:
        """Raise `OutputError` unless a table has the columns of these rows, and is partitioned so.

        Nor may it have rules for its rows that only other writers know: deltalake adds files
        without a look into them.

        Args:
            columns: the table's.
            schema: of the rows, with Delta's types.
            partition_by: what the user has said; nothing fits any table.
        """
        here = types_of(schema)
        difference = " and ".join(
            f"column {name!r} is {here.get(name, 'missing')} instead of "
            f"{columns.types.get(name, 'missing')}"
            for name in {**columns.types, **here}
            if here.get(name) != columns.types.get(name)
        )
        if difference:
            msg = (
                f"the Delta table {self.folder.url!r} has other columns than these rows: "
                f"{difference}; rename or cast them with select(), or name another table"
            )
            raise OutputError(msg)
        if columns.rules:
            msg = (
                f"the Delta table {self.folder.url!r} has {' and '.join(columns.rules)}, to which "
                "this sink does not keep: take that from the table, or name another table"
            )
            raise OutputError(msg)
        self.refuse_partitions(columns, partition_by)

    def refuse_partitions(self, columns: DeltaColumns, partition_by: Sequence[str]) -> None:
        """Raise `OutputError` if the user has said that a table is partitioned otherwise."""
        if partition_by and tuple(partition_by) != columns.partition_by:
            is_so = ", ".join(map(repr, columns.partition_by)) or "nothing"
            msg = (
                f"the Delta table {self.folder.url!r} is partitioned by {is_so}: leave "
                "partition_by out, or name another table"
            )
            raise OutputError(msg)

    def _try(
        self,
        table: DeltaTable | None,
        files: Sequence[DeltaFile],
        schema: pa.Schema,
        application: str,
        number: int,
        mode: Literal["append", "overwrite"],
        partition_by: Sequence[str],
    ) -> bool:
        """Return whether the transaction is in the log; False: another was there first."""
        from deltalake import CommitProperties, Transaction
        from deltalake import Schema as DeltaSchema
        from deltalake.exceptions import CommitFailedError, DeltaError
        from deltalake.transaction import create_table_with_add_actions

        properties = CommitProperties(app_transactions=[Transaction(application, number)])
        actions = [one.as_action() for one in files]
        delta_schema = DeltaSchema.from_arrow(schema)
        if table is not None:
            try:
                table.create_write_transaction(
                    actions,
                    mode,
                    table.schema(),
                    list(_columns_of(table).partition_by),
                    commit_properties=properties,
                )
            except CommitFailedError:
                now = self._open()
                if now is not None and now.version() == table.version():
                    raise  # nobody was first: deltalake does not write such a table
                return False
            return True
        try:
            create_table_with_add_actions(
                self.folder.url,
                delta_schema,
                actions,
                partition_by=list(partition_by),
                storage_options=dict(self.folder.options),
                commit_properties=properties,
            )
        except DeltaError:
            if self._open() is None:
                raise
            return False
        return True

    def _open(self) -> DeltaTable | None:
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        try:
            return DeltaTable(self.folder.url, storage_options=dict(self.folder.options))
        except TableNotFoundError:
            return None

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn what deltalake raises into one clear line."""
        from deltalake.exceptions import DeltaError

        try:
            yield
        except (DeltaError, OSError, ValueError) as error:
            raise as_output_error(self.folder, error) from error


def as_output_error(folder: TableFolder, error: Exception) -> OutputError:
    """Return the error of a library, or of the system, as one line that names the table."""
    from deltalake.exceptions import CommitFailedError, DeltaProtocolError

    what = f"the Delta table {folder.url!r} cannot be read or written"
    if isinstance(error, OSError) and error.errno:
        return OutputError(f"{what}: {system_reason(error)}; check the place, and its permissions")
    remedy = store_remedy(str(error)) or "check the place, its permissions and storage_options"
    if isinstance(error, (CommitFailedError, DeltaProtocolError)):
        remedy = "name a table without that"
    if "credentials" in remedy:
        remedy = f"{remedy} (storage_options)"
    return OutputError(f"{what}: {_reason_of(error)}; {remedy}")


def _reason_of(error: Exception) -> str:
    """Return what a library says in one line: the first cause, and the last."""
    said = str(error)
    answered = store_reason(said)
    if answered is not None:
        return answered
    # deltalake draws the chain of causes as a tree, the innermost last.
    told = [line for each in said.splitlines() if (line := _DRAWN.sub("", each).strip())]
    return ": ".join([told[0], *told[-1:]][: len(told)]) if told else repr(error)


def types_of(schema: pa.Schema) -> dict[str, str]:
    """Return Delta's type of each column, by name."""
    from deltalake import Schema as DeltaSchema

    return {one.name: _type_name(one.type) for one in DeltaSchema.from_arrow(schema).fields}


def _columns_of(table: DeltaTable) -> DeltaColumns:
    fields = table.schema().fields
    metadata = table.metadata()
    return DeltaColumns(
        {one.name: _type_name(one.type) for one in fields},
        tuple(metadata.partition_columns),
        frozenset(one.name for one in fields if not one.nullable),
        tuple(_rules_of(metadata.configuration, fields)),
        metadata.configuration.get("delta.appendOnly") == "true",
    )


def _rules_of(configuration: Mapping[str, str], fields: Iterable[Field]) -> Iterator[str]:
    """Yield what a table demands of the rows that are written into it.

    Source: the protocol of Delta Lake, "Requirements for Writers".
    """
    for key in sorted(configuration):
        if key.startswith(_CONSTRAINT):
            yield f"the constraint {key.removeprefix(_CONSTRAINT)!r}"
    if configuration.get("delta.columnMapping.mode", "none") != "none":
        yield "column mapping"
    for one in fields:
        keys = [key for key in one.metadata if key.startswith(_RULES_OF_COLUMNS)]
        if keys:
            yield f"{', '.join(sorted(keys))} of column {one.name!r}"


def _type_name(kind: object) -> str:
    """Return the name of a plain type, and the JSON of any other."""
    name = getattr(kind, "type", None)
    return name if isinstance(name, str) else str(kind)


def _last(table: DeltaTable, application: str) -> int:
    found = table.transaction_version(application)
    return -1 if found is None else found
