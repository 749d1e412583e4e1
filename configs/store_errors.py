"""What object stores refuse, in words: the reason in what their clients say, and the remedy.

Clients of object stores (fsspec's, and those of other libraries) raise what the store has answered
as text: a status, the name of an error, maybe the XML in which S3 says it.
"""

from __future__ import annotations

import re

__all__ = ["store_reason", "store_remedy"]

_REFUSED = (
    "403",
    "accessdenied",
    "access denied",
    "forbidden",
    "credential",
    "invalidaccesskeyid",
    "signature",
    "lacked the necessary privileges",
)
_ABSENT = ("nosuchbucket", "bucket does not exist")
_MESSAGE = re.compile(r"<Message>([^<]+)</Message>")


def store_reason(said: str) -> str | None:
    """Return the sentence of an S3 server's XML in a text; None if there is no such XML."""
    found = _MESSAGE.search(said)
    return None if found is None else found[1].strip().rstrip(".")


def store_remedy(said: str) -> str | None:
    """Return what to do about an answer of an object store; None if the text does not tell."""
    said = said.lower()
    if any(word in said for word in _REFUSED):
        return "check the credentials, and what they permit there"
    if any(word in said for word in _ABSENT):
        return "create the bucket, or name another"
    return None
