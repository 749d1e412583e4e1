"""JSON files that tell by themselves whether they are whole, and which version wrote them.

The first line says what the file is, in which version, and the size and CRC of all that follows::

    {"whale-ray": "manifest", "version": 1, "nbytes": 1234, "crc32": 2882343476}
    {"manifest": …}

So a file that was cut short is recognized, and a newer version before its content is looked at.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Any

from ...configs.errors import DamagedCheckpointError, InputError

__all__ = ["fault_of", "seal", "unseal"]


def seal(kind: str, version: int, content: object) -> bytes:
    """Return the bytes of a file.

    Args:
        kind: what it is.
        version: of its content's format.
        content: values of JSON only, or dataclasses of them; integers of any size and floats are
            kept exactly.

    Raises:
        ValueError, TypeError: the content is not of JSON.
    """
    text = json.dumps(content, allow_nan=False, separators=(",", ":"), default=_plain)
    body = text.encode() + b"\n"
    head = {"whale-ray": kind, "version": version, "nbytes": len(body), "crc32": zlib.crc32(body)}
    return json.dumps(head).encode() + b"\n" + body


def fault_of(content: object) -> str:
    """Return why a content cannot be sealed; "" if it can."""
    try:
        json.dumps(content, allow_nan=False, default=_plain)
    except (TypeError, ValueError) as error:
        return str(error)
    return ""


def unseal(kind: str, version: int, data: bytes, name: str) -> Any:
    """Return the content of a file that `seal` made.

    Args:
        kind: what it must be.
        version: the newest that is known; all up to it are read.
        data: the whole file.
        name: of the file, for messages.

    Raises:
        DamagedCheckpointError: it was cut short, or its bytes have changed.
        InputError: it is something else, or of a newer version.
    """
    line, _, body = data.partition(b"\n")
    try:
        head = json.loads(line)
        found, theirs = str(head["whale-ray"]), int(head["version"])
        nbytes, crc32 = int(head["nbytes"]), int(head["crc32"])
    except (ValueError, KeyError, TypeError, OverflowError):
        msg = f"{name} is no {kind} of whale-ray, or is damaged: its first line cannot be read"
        raise DamagedCheckpointError(msg) from None
    if theirs < 1:
        msg = f"{name} is damaged: its first line says version {theirs}, and the first was 1"
        raise DamagedCheckpointError(msg)
    if found != kind:
        msg = f"{name} is a {found} of whale-ray, not a {kind}"
        raise InputError(msg)
    if theirs > version:
        msg = (
            f"{name} was written by a newer whale-ray (its version of a {kind} is {theirs}, this"
            f" program knows {version}); read it with that one, or a later one"
        )
        raise InputError(msg)
    if len(body) < nbytes:
        msg = f"{name} was cut short: {len(body):,} of {nbytes:,} bytes behind its first line"
        raise DamagedCheckpointError(msg)
    if len(body) != nbytes or zlib.crc32(body) != crc32:
        msg = f"{name} is damaged: its bytes do not agree with the CRC in its first line"
        raise DamagedCheckpointError(msg)
    return json.loads(body)


def _plain(value: object) -> dict[str, Any]:
    """Return what stands for a value that is not of JSON."""
    if is_dataclass(value):
        return vars(value)
    if isinstance(value, Mapping):
        return dict(value)
    msg = f"{value!r} is not of JSON, and cannot be kept in a checkpoint's manifest"
    raise TypeError(msg)
