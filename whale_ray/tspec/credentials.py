"""Credentials, which are not written into files that are shown and passed on."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from ..configs.errors import UsageError

__all__ = ["refuse_credentials", "without_password", "without_secrets", "without_signature"]

_SECRET: Final = (
    *("password", "passwd", "secret", "token", "key", "oauth", "jaas"),
    *("connection_string", "credential"),
)
"""Parts of the names of settings that are credentials, or lead to them."""

_SECRET_OF_USERS: Final = re.compile(
    r"passw|passphrase|pwd|secret|token(?!i[sz]|s?_(column|field))|credential|connection_?string"
    r"|(api|access|account|private|signing)_?key",
    re.I,
)
"""In the names of users' own arguments: a `key` alone is mostly a column; tokens may be words."""

_SECRET_IN_URL: Final = re.compile(
    r"://[^/?#\s]*:[^/?#\s]*@|[?&;](sig|[^=&]*(key|token|secret))=", re.I
)
"""Of a URL: a password before its host, or a signature behind it."""

_SECRET_IN_DSN: Final = re.compile(r"\b(password|passwd|pwd)\s*=\s*\S", re.I)


def refuse_credentials(arguments: Mapping[str, Any]) -> None:
    """Refuse arguments of what users have written, if a text among them seems to be a credential.

    Raises:
        UsageError: one does, by its name or by what is in it; it is not told.
    """
    for name, value in arguments.items():
        _refuse(str(name), value)


def _refuse(name: str, value: Any) -> None:
    if isinstance(value, Mapping):
        refuse_credentials(value)
    elif isinstance(value, list):
        for one in value:
            _refuse(name, one)
    elif isinstance(value, str | bytes) and value and _is_credential(name, value):
        msg = (
            f"its argument {name} seems to be a credential, and such files have none: let the class"
            " read it from the environment when it is opened"
        )
        raise UsageError(msg)


def _is_credential(name: str, value: str | bytes) -> bool:
    text = value if isinstance(value, str) else value.decode(errors="replace")
    within = (_SECRET_IN_URL, _SECRET_IN_DSN)
    return bool(_SECRET_OF_USERS.search(name)) or any(one.search(text) for one in within)


def without_secrets(name: str, given: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return settings if none of them is a credential; None if there are none.

    Raises:
        UsageError: one is.
    """
    secret = [
        key
        for key, value in given.items()
        if any(part in key.lower() for part in _SECRET) or _SECRET_IN_URL.search(str(value))
    ]
    if secret:
        msg = (
            f"its {name} have {secret[0]!r}, and such files have no credentials: leave them out,"
            f" and write {name}: {{import: module:name}} by hand, a variable of a module of yours"
        )
        raise UsageError(msg)
    return dict(given) or None


def without_signature(url: str) -> str:
    """Return a URL that has no credential; raises UsageError for others."""
    if _SECRET_IN_URL.search(url):
        msg = "its URL has a credential, and such files have none: leave it to the environment"
        raise UsageError(msg)
    return url


def without_password(dsn: str) -> str:
    """Return the address of a database that has no password; raises UsageError for others."""
    from psycopg import ProgrammingError
    from psycopg.conninfo import conninfo_to_dict

    try:
        given = conninfo_to_dict(dsn)
    except ProgrammingError as error:
        msg = "its dsn is none of libpq's"  # without what libpq says, which may be the password
        raise UsageError(msg) from error
    if any(value and ("password" in key or "secret" in key) for key, value in given.items()):
        msg = (
            "its dsn has a password, and such files have no credentials: leave it to PGPASSWORD or"
            " to a file .pgpass"
        )
        raise UsageError(msg)
    return dsn
