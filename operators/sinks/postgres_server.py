"""Connections to a Postgres server, and its errors as one clear line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

from ...configs.errors import OutputError

if TYPE_CHECKING:
    import psycopg

Connection: TypeAlias = "psycopg.Connection[Any]"

_CONNECT_TIMEOUT_S = 10
_LOCKS = 0x7768_616C  # "whal": the space of whale-ray's advisory locks


def connect(dsn: str, what: str) -> Connection:
    """Return a connection to a server.

    Args:
        dsn: as psycopg takes it.
        what: the table, for messages.

    Raises:
        OutputError: the server is not there, or refuses the login.
    """
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    try:
        timeout = conninfo_to_dict(dsn).get("connect_timeout") or _CONNECT_TIMEOUT_S
        # Text is sent as UTF-8, whatever the database has.
        return psycopg.connect(dsn, connect_timeout=int(timeout), client_encoding="utf8")
    except (psycopg.Error, ValueError) as error:
        reason = reason_of(error)
        remedy = "start the server, or correct the dsn"
        if "FATAL:" in reason:  # a server is there, and has said so
            remedy = "correct user, password and database of the dsn, or let the server permit them"
        msg = f"{what}: no connection: {reason}; {remedy}"
        raise OutputError(msg) from None  # the dsn, which may hold a password, stays out


@contextmanager
def server_errors(what: str) -> Iterator[None]:
    """Turn what the server, or the connection, says into one line that names the table."""
    import psycopg

    try:
        yield
    except psycopg.OperationalError as error:
        msg = (
            f"{what}: the connection broke, or the server had no room: {reason_of(error)}; what "
            "was being committed may be there or not, and is asked for again"
        )
        raise OutputError(msg) from error
    except psycopg.errors.InsufficientPrivilege as error:
        msg = (
            f"{what}: the server refuses: {reason_of(error)}; let the role read and write the "
            "table, and create tables in its schema"
        )
        raise OutputError(msg) from error
    except psycopg.Error as error:
        msg = f"{what}: the server refuses: {reason_of(error)}; correct the table or the rows"
        raise OutputError(msg) from error


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
