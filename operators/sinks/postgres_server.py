"""Connections to a Postgres server, and its errors as one clear line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

from ...configs.errors import OutputError
from ...transport.clock import SystemClock

if TYPE_CHECKING:
    import psycopg

Connection: TypeAlias = "psycopg.Connection[Any]"

_CONNECT_TIMEOUT_S = 10
_KEEPALIVE = {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3}
"""Seconds, and how many: a host that is gone is noticed after a minute, and not after two hours."""

_BACK_WITHIN_S = 60.0
_PAUSE_NS = 250_000_000
_NOT_READY = "the database system is"
"""Starting up, shutting down, or in recovery: what a server says that will be there soon."""

_GONE = ("08006", "08003", "57P01", "57P02")
"""SQLSTATE of connections that are lost, or of servers that end them; the first one if none is."""

_BROKEN = ("08", "53", "57P", "58")
"""How SQLSTATE begins where the connection, or the server itself, is what does not work."""

_WITHOUT_TIMEOUTS = """
    SELECT set_config(name, '0', false) FROM pg_settings WHERE setting <> '0' AND source <> 'client'
    AND name IN ('statement_timeout', 'transaction_timeout', 'idle_session_timeout',
        'idle_in_transaction_session_timeout')"""
"""A COPY lasts as long as an epoch, or a bounded job: what bounds users' queries is not for it.

What the dsn itself has (`options`) comes from the client, and stays.
"""

_LOCKS = 0x7768_616C  # "whal": the space of whale-ray's advisory locks


class TableLockedError(OutputError):
    """Another transaction holds a lock on a table; it may let go of it."""


class ServerLostError(OutputError):
    """The server is gone, and may come back: what was not committed there has to be sent again."""


def connect(dsn: str, what: str) -> Connection:
    """Return a connection to a server.

    Args:
        dsn: as psycopg takes it.
        what: the table, for messages.

    Raises:
        ServerLostError: the server is not there, or not ready.
        OutputError: it refuses the login.
    """
    import psycopg
    from psycopg.conninfo import make_conninfo

    given = _checked_parts(dsn, what)
    try:
        ours = {name: value for name, value in _KEEPALIVE.items() if name not in given}
        # Text is sent as UTF-8, whatever the database has.
        more = {**ours, "connect_timeout": given["connect_timeout"]}
        connection = psycopg.connect(make_conninfo(dsn, **more, client_encoding="utf8"))
        try:
            connection.execute(_WITHOUT_TIMEOUTS)
            connection.commit()
        except BaseException:
            connection.close()
            raise
        return connection
    except psycopg.Error as error:
        reason = reason_of(error)
        is_lost = isinstance(error, psycopg.OperationalError)
        remedy = "start the server, or correct the dsn"
        if "FATAL:" in reason and _NOT_READY not in reason:  # a server is there, and has said so
            is_lost = False
            remedy = "correct user, password and database of the dsn, or let the server permit them"
        msg = f"{what}: no connection: {reason}; {remedy}"
        kind = ServerLostError if is_lost else OutputError
        raise kind(msg) from None  # the dsn, which may hold a password, stays out


def _checked_parts(dsn: str, what: str) -> dict[str, Any]:
    """Return what a dsn says, `connect_timeout` as an int.

    Raises:
        OutputError: it is none; what libpq says of it may be the password, and is not told.
    """
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    try:
        given: dict[str, Any] = conninfo_to_dict(dsn)
    except psycopg.Error:
        raise _wrong(what, "the dsn is none of libpq's") from None
    ports = [one for one in str(given.get("port") or "").split(",") if one]
    if not all(one.strip().isdecimal() for one in ports):  # what follows the : of user:password/
        raise _wrong(what, "the port of the dsn is no number")
    if "://" in dsn and "@" in str(given.get("host")):  # what follows the first @ of a password
        raise _wrong(what, "the dsn has two @")
    timeout = str(given.get("connect_timeout") or _CONNECT_TIMEOUT_S)
    timeout_s = int(timeout) if timeout.strip().isdecimal() else 0
    if not timeout_s:
        msg = (
            f"{what}: no connection: connect_timeout={timeout} would wait without end, or is no"
            " number: name seconds in the dsn"
        )
        raise OutputError(msg)
    return {**given, "connect_timeout": timeout_s}


def _wrong(what: str, reason: str) -> OutputError:
    msg = (
        f"{what}: no connection: {reason}; write postgresql://user:password@host/db, where signs"
        " such as @, / and % are %40, %2F and %25, or host=… password='…' dbname=…"
    )
    return OutputError(msg)


def wait_for_server(dsn: str, what: str) -> None:
    """Return once the server answers again.

    Raises:
        OutputError: it has not come back in time, or refuses the login.
    """
    clock = SystemClock()
    until_ns = clock.monotonic_ns() + int(_BACK_WITHIN_S * 1e9)
    while True:
        try:
            return connect(dsn, what).close()
        except ServerLostError as error:
            if clock.monotonic_ns() > until_ns:
                msg = (
                    f"{error}; it has not come back within {_BACK_WITHIN_S:.0f} s: once it has, "
                    "resume the job from its newest checkpoint"
                )
                raise OutputError(msg) from None
        clock.sleep_ns(_PAUSE_NS)


def limit_lock_waits(connection: Connection, timeout_ms: int) -> bool:
    """Let this transaction wait for each lock so long at most: TableLockedError then.

    Returns: whether that is done; not if the dsn itself has a limit.
    """
    row = connection.execute(
        "SELECT set_config(name, %s, true) FROM pg_settings"
        " WHERE name = 'lock_timeout' AND source <> 'client'",
        (f"{timeout_ms}ms",),
    ).fetchone()
    return row is not None


@contextmanager
def server_errors(what: str) -> Iterator[None]:
    """Turn what the server, or the connection, says into one line that names the table."""
    import psycopg

    try:
        yield
    except psycopg.Error as error:
        is_operational = isinstance(error, psycopg.OperationalError)
        state = error.sqlstate or (_GONE[0] if is_operational else "")
        if state.startswith(_BROKEN):
            kind = ServerLostError if state in _GONE else OutputError
            msg = (
                f"{what}: the connection broke, or the server had no room: {reason_of(error)}; "
                "what was being committed may be there or not, and is asked for again"
            )
            raise kind(msg) from error
        remedy = _remedy_of(error)
        msg = f"{what}: the server refuses: {reason_of(error)}; {remedy}"
        is_locked = isinstance(error, psycopg.errors.LockNotAvailable)
        raise (TableLockedError if is_locked else OutputError)(msg) from error


def _remedy_of(error: psycopg.Error) -> str:
    """Return what to do about what the server refuses."""
    from psycopg import errors

    match error:
        case errors.InsufficientPrivilege():
            return "let the role read and write the table, and create tables in its schema"
        case errors.InvalidSchemaName():
            return "create it (CREATE SCHEMA), or correct the schema in the table's name"
        case errors.ReadOnlySqlTransaction():
            return "name a server, database and role in the dsn that may write: no standby"
        case errors.LockNotAvailable():
            return "end the transaction that holds a lock on the table (pg_locks names it)"
        case errors.QueryCanceled():
            return "give statements more time (statement_timeout), unless somebody ended it"
        case _:
            return "correct the table or the rows"


def reason_of(error: Exception) -> str:
    """Return the server's reason as one line, without its place in the program."""
    told = getattr(getattr(error, "diag", None), "message_primary", None)
    lines = [line.strip() for line in str(told or error).splitlines() if line.strip()]
    detail = getattr(getattr(error, "diag", None), "message_detail", None)
    first = lines[0] if lines else type(error).__name__
    return f"{first} ({' '.join(str(detail).split())})" if detail else first


@contextmanager
def connection_to(dsn: str, what: str) -> Iterator[Connection]:
    """Yield a connection whose transaction is committed at the end, or rolled back; close it.

    Raises:
        OutputError: the server is not there, refuses something, or the connection broke.
    """
    connection = connect(dsn, what)
    try:
        with server_errors(what):
            yield connection
            connection.commit()
    finally:
        connection.close()


def lock_for_transaction(connection: Connection, number: int) -> None:
    """Wait for a lock that others who create the same thing take, too."""
    connection.execute("SELECT pg_advisory_xact_lock(%s, %s)", (_LOCKS, number))


def hold(connection: Connection, number: int) -> None:
    """Show until the connection ends that somebody lives who uses a thing."""
    connection.execute("SELECT pg_advisory_lock_shared(%s, %s)", (_LOCKS, number))


def release_all(connection: Connection) -> None:
    """End what `hold` has shown."""
    connection.execute("SELECT pg_advisory_unlock_all()")


def is_held(connection: Connection, number: int) -> bool:
    """Return whether another uses a thing; if not, nobody begins to before the transaction ends."""
    row = connection.execute(
        "SELECT pg_try_advisory_xact_lock(%s, %s)", (_LOCKS, number)
    ).fetchone()
    return row is None or not row[0]
