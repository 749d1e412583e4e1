"""Reads text files in any encoding as UTF-8.

Bytes that cannot be decoded are replaced by 0xff, which never occurs in UTF-8, so that their
records are malformed and are treated by the same policy as in UTF-8 files.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from typing import Protocol

from ...configs.errors import InputError

UTF_8 = "utf-8"

_UNDECODABLE = "whale_ray.undecodable"
_NEVER_UTF_8 = "\udcff"
"""The character that `surrogateescape` encodes as the byte 0xff."""

_BOMS = {
    codecs.BOM_UTF32_LE: "UTF-32 text; pass encoding='utf-32'",
    codecs.BOM_UTF32_BE: "UTF-32 text; pass encoding='utf-32'",
    codecs.BOM_UTF16_LE: "UTF-16 text; pass encoding='utf-16'",
    codecs.BOM_UTF16_BE: "UTF-16 text; pass encoding='utf-16'",
}
_BINARY = {
    b"\x1f\x8b": "compressed by gzip, not text; let its name end in .gz",
    b"\x28\xb5\x2f\xfd": "compressed by zstd, not text; let its name end in .zst",
    b"PK\x03\x04": "a ZIP archive (or a spreadsheet), not text; unpack it (or export it as text)",
}
_FIRST_BYTES = 4
"""The length of the longest of these signatures."""


class ByteStream(Protocol):
    """A binary stream to read from."""

    def read(self, nbytes: int) -> bytes:
        """Return at most `nbytes` bytes, none at the end."""

    def seek(self, position: int) -> object:
        """Resume from a position; only for a file that is not compressed."""


def check_encoding(encoding: str) -> str:
    """Return Python's name of a text encoding.

    Raises:
        InputError: Python has no such encoding.
    """
    try:
        name = codecs.lookup(encoding).name
        codecs.getincrementaldecoder(name)
        "".encode(name)
    except (LookupError, TypeError, ValueError):
        msg = (
            f"encoding={encoding!r} is unknown; "
            "use one of Python's, such as 'utf-8', 'latin-1', 'cp1252' or 'utf-16'"
        )
        raise InputError(msg) from None
    return UTF_8 if name == "utf-8-sig" else name


def utf8_pieces(
    stream: ByteStream,
    path: str,
    encoding: str,
    piece_bytes: int,
    offset: int,
    seeks: bool,
) -> Iterator[tuple[bytes, bool]]:
    """Yield a file as pieces of UTF-8 without a byte-order mark, and whether each is the last.

    Args:
        stream: the file, decompressed.
        path: its name.
        encoding: that of the file, as Python names it.
        piece_bytes: how many bytes to read at once.
        offset: how many bytes of the result to leave out at the beginning.
        seeks: whether the stream can seek; so bytes of UTF-8 are left out without reading them.

    Raises:
        InputError: the file's signature is that of a binary format or of another encoding.
    """
    decoder = None
    if encoding != UTF_8:
        decoder = codecs.getincrementaldecoder(encoding)(errors=_UNDECODABLE)
    seeks = seeks and decoder is None and offset > 0
    piece = stream.read(_FIRST_BYTES if seeks else max(piece_bytes, _FIRST_BYTES))
    _check_start(piece, path, encoding)
    first, last = True, False
    if seeks:
        mark = len(codecs.BOM_UTF8) if piece.startswith(codecs.BOM_UTF8) else 0
        stream.seek(mark + offset)
        piece, first, offset = stream.read(piece_bytes), False, 0
    while not last:
        following = stream.read(piece_bytes) if piece else b""
        last = not following
        if decoder is not None:
            piece = decoder.decode(piece, final=last).encode("utf-8", "surrogateescape")
        piece = piece.removeprefix(codecs.BOM_UTF8) if first else piece
        if offset and not last and len(piece) <= offset:
            offset -= len(piece)
        else:
            yield piece[offset:] if offset else piece, last
            offset = 0
        piece, first = following, False


def undecodable(data: bytes) -> bool:
    """Return whether text from `utf8_pieces` holds bytes that could not be decoded."""
    try:
        data.decode(UTF_8)
    except UnicodeDecodeError:
        return True
    return False


def encoding_remedy(encoding: str) -> str:
    """Return what the user can do about bytes that cannot be decoded, for error messages."""
    if encoding == UTF_8:
        return "pass the file's encoding=, such as 'latin-1'"
    return "pass the file's true encoding="


def _check_start(data: bytes, path: str, encoding: str) -> None:
    known = _BINARY if encoding != UTF_8 else _BINARY | _BOMS
    for start, what in known.items():
        if data.startswith(start):
            msg = f"{path}: this is {what}"
            raise InputError(msg)


def _replace(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return _NEVER_UTF_8, error.end


codecs.register_error(_UNDECODABLE, _replace)
