"""The tables of a Postgres sink: the user's, those of staged rows, and that of what is committed.

    <table>                  the user's
    whale_stage_<key>_<i>_0  rows that instance i has staged, each part of them under its number
    whale_stage_<key>_<i>_1  the same: parts take turns, so that one table is free to be emptied
    whale_ray_commits        by table, job and operator the last epoch whose rows are in the table

The key is a digest of the job, the operator and the table. All lie in the schema of the user's.

Values stand in the statements as literals: beside parameters, psycopg would take a percent sign in
the name of a table or a column for one of them.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING

from ...configs.errors import OutputError
from .postgres_server import Connection, is_held, lock_for_transaction
from .postgres_types import TableColumn, created_as, fits

if TYPE_CHECKING:
    import pyarrow as pa
    from psycopg import sql

COMMITS = "whale_ray_commits"
_STAGE = "whale_stage_"
_PART, _ROW = "whale_part", "whale_row"
"""The columns that staged rows have beside those of the rows."""

_CREATION = 0
"""The number of the lock under which tables are created."""

_COLUMNS = """
    SELECT attname, format_type(atttypid, NULL), format_type(atttypid, atttypmod), attnotnull,
        atthasdef OR attidentity <> '' OR attgenerated <> '',
        attidentity = 'a' OR attgenerated <> ''
    FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped
    ORDER BY attnum"""

_CUT_NAMES = """
    SELECT name, name::name::text FROM unnest(%s::text[]) AS name WHERE name::name::text <> name
    LIMIT 1"""


@dataclass(frozen=True)
class PostgresTable:
    """The user's table.

    Attributes:
        schema: None: the first of the user's search path.
        name: of the table.
        key: the columns by which rows replace each other; () to append.
    """

    schema: str | None
    name: str
    key: tuple[str, ...] = ()

    @property
    def described(self) -> str:
        """The table's name, for messages."""
        return f"the Postgres table {self.schema + '.' if self.schema else ''}{self.name}"

    def stage_prefix(self, token: str, operator_id: str) -> str:
        """Return how the names of a job's tables of staged rows begin."""
        text = f"{token}\0{operator_id}\0{self.schema or ''}\0{self.name}"
        return f"{_STAGE}{blake2b(text.encode(), digest_size=8).hexdigest()}_"

    def qualified(self, name: str | None = None) -> sql.Identifier:
        """Return the name of a table of the same schema, by default of the user's, for SQL."""
        from psycopg import sql

        wanted = self.name if name is None else name
        return sql.Identifier(*((self.schema, wanted) if self.schema else (wanted,)))

    def columns(self, connection: Connection) -> tuple[TableColumn, ...]:
        """Return the table's columns, () if it is not there."""
        name = self.qualified().as_string(connection)
        return tuple(TableColumn(*row) for row in connection.execute(_COLUMNS, (name,)))

    def matched(self, connection: Connection, schema: pa.Schema) -> tuple[TableColumn, ...]:
        """Return the column of the table, or of one to be created, for each of the rows' columns.

        Raises:
            OutputError: the table has other columns, the key is none of them, or the server would
                cut a name short.
        """
        self._refuse_long_names(connection, schema.names)
        for name in (_PART, _ROW):
            if name in schema.names:
                msg = (
                    f"{self.described}: staged rows have a column {name!r} of their own: give "
                    "this one another name with select()"
                )
                raise OutputError(msg)
        for name in self.key:
            if name not in schema.names:
                msg = f"{self.described}: the rows have no column {name!r}, which the key names"
                raise OutputError(msg)
        found = {column.name: column for column in self.columns(connection)}
        if not found:
            return tuple(map(created_as, schema))
        known = [found[name] for name in schema.names if name in found]
        generated = [repr(column.name) for column in known if column.is_generated]
        if generated:
            msg = (
                f"{self.described}: the server alone says what is in {' and '.join(generated)}, "
                "GENERATED ALWAYS; leave out what the rows have there with select()"
            )
            raise OutputError(msg)
        wrong = [
            f"column {field.name!r} is {created_as(field).declared} instead of "
            f"{found[field.name].declared if field.name in found else 'missing'}"
            for field in schema
            if field.name not in found or not fits(found[field.name], field.type)
        ] + [
            f"column {column.name!r} is missing instead of {column.declared}"
            for column in found.values()
            if column.name not in schema.names and not column.has_default
        ]
        if wrong:
            msg = (
                f"{self.described} has other columns than these rows: {' and '.join(wrong)}; "
                "rename or cast them with select(), alter the table, or name another"
            )
            raise OutputError(msg)
        return tuple(found[name] for name in schema.names)

    def _refuse_long_names(self, connection: Connection, columns: Sequence[str]) -> None:
        """Raise `OutputError` for names that the server would cut, and so take for others."""
        names = [self.schema or "", self.name, *columns]
        cut = connection.execute(_CUT_NAMES, (names,)).fetchone()
        if cut is not None:
            msg = (
                f"{self.described}: the server keeps only {cut[1]!r} of the name {cut[0]!r}; "
                "shorten it"
            )
            raise OutputError(msg)

    def check_key(self, connection: Connection, stage: str, columns: Sequence[TableColumn]) -> None:
        """Raise `OutputError` unless a unique index lets rows replace each other by the key."""
        import psycopg

        if not self.key or not self.columns(connection):
            return
        try:
            with connection.transaction():
                connection.execute(self._insertion("EXPLAIN ", [stage], [], columns))
        except psycopg.errors.InvalidColumnReference:
            names = ", ".join(self.key)
            msg = (
                f"{self.described} has no unique index on ({names}), by which rows could replace "
                f"each other: CREATE UNIQUE INDEX ON {self.name} ({names})"
            )
            raise OutputError(msg) from None

    def create(self, connection: Connection, columns: Sequence[TableColumn]) -> None:
        """Create the table unless it is there."""
        from psycopg import sql

        # Only who creates one takes the lock: it lasts as long as the commit, and others wait.
        if self.columns(connection):
            return
        lock_for_transaction(connection, _CREATION)
        if self.columns(connection):
            return
        parts = [_definition(column) for column in columns]
        if self.key:
            parts.append(sql.SQL("PRIMARY KEY ({})").format(_names(self.key)))
        connection.execute(
            sql.SQL("CREATE TABLE {} ({})").format(self.qualified(), sql.SQL(", ").join(parts))
        )

    # --- what is committed ------------------------------------------------------------------------

    def create_commits(self, connection: Connection) -> None:
        """Create the table of commits unless it is there."""
        from psycopg import sql

        if self._table_exists(connection, COMMITS):
            return
        lock_for_transaction(connection, _CREATION)
        if self._table_exists(connection, COMMITS):
            return
        connection.execute(
            sql.SQL(
                "CREATE TABLE {} (into_table text, job text, operator text, epoch bigint NOT NULL,"
                " committed_at timestamptz NOT NULL DEFAULT now(),"
                " PRIMARY KEY (into_table, job, operator))"
            ).format(self.qualified(COMMITS))
        )

    def last(self, connection: Connection, lineage: str, operator_id: str) -> int:
        """Return the last epoch that a job's operator has committed, -1 if none."""
        from psycopg import sql

        row = connection.execute(
            sql.SQL(
                "SELECT epoch FROM {} WHERE into_table = {} AND job = {} AND operator = {}"
            ).format(self.qualified(COMMITS), self.name, lineage, operator_id)
        ).fetchone()
        return -1 if row is None else int(row[0])

    def advance(self, connection: Connection, lineage: str, operator_id: str, epoch: int) -> bool:
        """Note a commit; return false if it, or a later one, is there already.

        Another that makes the same commit waits here until this transaction has ended.
        """
        from psycopg import sql

        noted = connection.execute(
            sql.SQL(
                "INSERT INTO {} AS c (into_table, job, operator, epoch) VALUES ({}, {}, {}, {})"
                " ON CONFLICT (into_table, job, operator) DO UPDATE SET epoch = excluded.epoch,"
                " committed_at = now() WHERE c.epoch < excluded.epoch"
            ).format(self.qualified(COMMITS), self.name, lineage, operator_id, epoch)
        )
        return noted.rowcount == 1

    # --- staged rows ------------------------------------------------------------------------------

    def create_stage(
        self, connection: Connection, stage: str, columns: Sequence[TableColumn]
    ) -> None:
        """Create a table of staged rows unless it is there.

        It survives a crash of the server, as what is staged must: it is an ordinary table.
        """
        from psycopg import sql

        connection.execute("SET client_min_messages = warning")
        connection.execute(
            sql.SQL(
                "CREATE TABLE IF NOT EXISTS {} (whale_part bigint, whale_row bigint, {}) WITH"
                " (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 100000)"
            ).format(self.qualified(stage), sql.SQL(", ").join(map(_definition, columns)))
        )

    def stages(self, connection: Connection, prefix: str = _STAGE) -> list[str]:
        """Return the names of tables of staged rows."""
        rows = connection.execute(
            "SELECT tablename FROM pg_tables WHERE starts_with(tablename, %s) AND schemaname ="
            " coalesce(%s, current_schema()) AND tableowner = current_user ORDER BY tablename",
            (prefix, self.schema),
        )
        return [row[0] for row in rows]

    def count(self, connection: Connection, stage: str, parts: Sequence[int]) -> int:
        """Return how many rows of parts are staged in a table, 0 if it is gone."""
        from psycopg import sql

        if not self._table_exists(connection, stage):
            return 0
        row = connection.execute(
            sql.SQL("SELECT count(*) FROM {} WHERE whale_part = ANY({})").format(
                self.qualified(stage), list(parts)
            )
        ).fetchone()
        return 0 if row is None else int(row[0])

    def lock(self, connection: Connection, stage: str) -> bool:
        """Keep others out of a table of staged rows; false if one uses it now, or it is gone."""
        import psycopg
        from psycopg import sql

        statement = sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE NOWAIT")
        try:
            with connection.transaction():
                connection.execute(statement.format(self.qualified(stage)))
        except (psycopg.errors.LockNotAvailable, psycopg.errors.UndefinedTable):
            return False
        return True

    def move(
        self,
        connection: Connection,
        stages: Sequence[str],
        parts: Sequence[int],
        columns: Sequence[TableColumn],
    ) -> None:
        """Copy staged rows into the table; with a key, the last row of each key replaces others.

        Args:
            connection: in whose transaction it is done.
            stages: the tables of staged rows.
            parts: their numbers, in the order in which they were staged.
            columns: of the rows.
        """
        connection.execute(self._insertion("", stages, parts, columns))

    def empty(self, connection: Connection, stage: str, parts: Sequence[int]) -> None:
        """Remove the rows of parts from a table of staged rows.

        As a whole if nothing else is in it and nobody writes into it, which is the rule: rows that
        are deleted one by one stay in the way of all that follow, until the server finds the time.
        """
        from psycopg import sql

        name = self.qualified(stage)
        if self.lock(connection, stage):
            others = sql.SQL("SELECT FROM {} WHERE whale_part <> ALL({}) LIMIT 1")
            if connection.execute(others.format(name, list(parts))).fetchone() is None:
                connection.execute(sql.SQL("TRUNCATE {}").format(name))
                return
        deletion = sql.SQL("DELETE FROM {} WHERE whale_part = ANY({})")
        connection.execute(deletion.format(name, list(parts)))

    def keep_only(self, connection: Connection, stage: str, parts: Sequence[int]) -> None:
        """Remove the staged rows of other parts."""
        from psycopg import sql

        connection.execute(
            sql.SQL("DELETE FROM {} WHERE whale_part <> ALL({})").format(
                self.qualified(stage), list(parts)
            )
        )

    def drop_unused(self, connection: Connection, prefix: str = _STAGE) -> None:
        """Drop the tables of staged rows that are empty, and that nobody uses; waits for nobody."""
        from psycopg import sql

        for stage in self.stages(connection, prefix):
            if is_held(connection, number_of(stage)) or not self.lock(connection, stage):
                continue
            name = self.qualified(stage)
            found = connection.execute(sql.SQL("SELECT FROM {} LIMIT 1").format(name))
            if found.fetchone() is None:
                connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(name))

    def copy_statement(self, stage: str, columns: Sequence[TableColumn]) -> sql.Composed:
        """Return the COPY that fills a table of staged rows."""
        from psycopg import sql

        names = _names(["whale_part", "whale_row", *(column.name for column in columns)])
        return sql.SQL("COPY {} ({}) FROM STDIN (FORMAT BINARY)").format(
            self.qualified(stage), names
        )

    def _insertion(
        self,
        verb: str,
        stages: Sequence[str],
        parts: Sequence[int],
        columns: Sequence[TableColumn],
    ) -> sql.Composed:
        from psycopg import sql

        names = [column.name for column in columns]
        staged = sql.SQL(" UNION ALL ").join(
            sql.SQL("SELECT whale_part, whale_row, {} FROM {}").format(
                _names(names), self.qualified(stage)
            )
            for stage in stages
        )
        if not self.key:
            return sql.SQL(
                verb + "INSERT INTO {} ({}) SELECT {} FROM ({}) AS staged"
                " WHERE whale_part = ANY({})"
            ).format(self.qualified(), _names(names), _names(names, "staged"), staged, list(parts))
        rest = [name for name in names if name not in self.key]
        changes = sql.SQL(", ").join(
            sql.SQL("{0} = excluded.{0}").format(sql.Identifier(name)) for name in rest
        )
        action = sql.SQL("UPDATE SET {}").format(changes) if rest else sql.SQL("NOTHING")
        # In the order of the key, so that two that replace the same rows do not wait in a ring.
        return sql.SQL(
            verb + "INSERT INTO {table} ({names}) SELECT DISTINCT ON ({staged_key}) {staged_names}"
            " FROM ({staged}) AS staged JOIN unnest({parts}::bigint[]) WITH ORDINALITY"
            " AS part (number, place) ON staged.whale_part = part.number"
            " ORDER BY {staged_key}, part.place DESC, staged.whale_row DESC"
            " ON CONFLICT ({key}) DO {action}"
        ).format(
            table=self.qualified(),
            names=_names(names),
            staged_names=_names(names, "staged"),
            staged=staged,
            key=_names(self.key),
            staged_key=_names(self.key, "staged"),
            action=action,
            parts=list(parts),
        )

    def _table_exists(self, connection: Connection, name: str) -> bool:
        qualified = self.qualified(name).as_string(connection)
        row = connection.execute("SELECT to_regclass(%s)", (qualified,)).fetchone()
        return row is not None and row[0] is not None


def number_of(stage: str) -> int:
    """Return the number of the lock that shows that a table of staged rows is in use."""
    return (zlib.crc32(stage.encode()) & 0x7FFF_FFFF) or 1


def _names(names: Sequence[str], *table: str) -> sql.Composed:
    from psycopg import sql

    return sql.SQL(", ").join(sql.Identifier(*table, name) for name in names)


def _definition(column: TableColumn) -> sql.Composed:
    from psycopg import sql

    required = " NOT NULL" if column.required else ""
    # The declared type is the server's own text, or whale-ray's.
    return sql.SQL("{} " + column.declared + required).format(sql.Identifier(column.name))
