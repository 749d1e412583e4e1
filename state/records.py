"""Records: how the state of one key lies in memory.

A record has a fixed width, in words of eight bytes::

    #hash   the key's hash, see `keys`
    #link   segment (32 bits) │ null bits of the key columns (24) │ state (8)
    #key    the key's words: columns of fixed width first, then one reference per text column
    #set    a bit per nullable field: whether it holds a value (only if there are such fields)
    …       the fields, each aligned to its own size

The segment is the one in which the record last changed for the first time, see `store`. A record
without a key has the next one of these in its place, + 1.

A *reference* tells where bytes of variable size lie in the heap, which is a part of the same log:
position in bytes (40 bits) │ length (24 bits).

Key columns become words whose bits are equal exactly if the keys are: -0.0 is stored as 0.0, every
NaN as one NaN, under a null stand zeros.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..configs.errors import InputError
from ..transport.wire.batch import Batch
from ..transport.wire.column import Column
from ..transport.wire.types import DataType, Schema
from .values import copy_values

__all__ = [
    "HEADER_WORDS",
    "LENGTH_BITS",
    "VALUE_BYTES_MAX",
    "PackedKeys",
    "RecordField",
    "RecordLayout",
    "column_of_references",
    "copy_of_records",
    "text_words",
]

Words = npt.NDArray[np.uint64]

_NO_WORDS = np.empty((0, 0), np.uint64)

HEADER_WORDS = 2
KEY_COLUMNS_MAX = 24
NULLABLE_FIELDS_MAX = 64
LENGTH_BITS = 24
VALUE_BYTES_MAX = (1 << LENGTH_BITS) - 1
"""The longest text or binary value: a little less than 16 MiB."""


@dataclass(frozen=True)
class RecordField:
    """One value that a record keeps beside its key.

    Attributes:
        name: unique in its layout; must not begin with "#".
        dtype: numpy's type of the value, subarrays included; of a `heap` field a reference, uint64.
        initial: the value of a new record.
        nullable: whether it may hold no value, which is what a new record then has.
        heap: whether it is a text or binary value, kept in the heap.
    """

    name: str
    dtype: np.dtype[Any]
    initial: Any = 0
    nullable: bool = False
    heap: bool = False

    @classmethod
    def of_bytes(cls, name: str) -> RecordField:
        """Return a field of text or binary values; it holds none at first."""
        return cls(name, np.dtype(np.uint64), nullable=True, heap=True)


class PackedKeys(NamedTuple):
    """The keys of a batch as the index compares them.

    Attributes:
        words: uint64 (n, width): those of columns of fixed width, then address and length of each
            text column.
        nulls: uint32 (n,): bit i is set if key column i is null; empty if no key is null.
        kept: what must live as long as the addresses are used.
    """

    words: Words
    nulls: npt.NDArray[np.uint32]
    kept: Batch

    @property
    def address(self) -> int:
        """Where the words are."""
        return int(self.words.ctypes.data)


class RecordLayout:
    """The layout of the records of one store.

    Args:
        keys: the key columns.
        fields: the values, in any order.

    Attributes:
        dtype: numpy's structured type of a record; its size is a multiple of 8 bytes.
        fixed_words: words of the key columns of fixed width.
        texts: number of key columns of variable size.
        heap_words: positions of the words that are references: int64 (references,).
        template: a new record without a key: uint64 (words,).

    Raises:
        InputError: two fields have one name, or there are too many key columns or nullable fields.
    """

    def __init__(self, keys: Schema, fields: Sequence[RecordField]) -> None:
        self.keys = keys
        self.fields = tuple(fields)
        self._check()
        self._fixed = [field for field in keys if field.type.kind == "fixed"]
        self._text = [field for field in keys if field.type.kind == "bytes"]
        self.texts = len(self._text)
        self.fixed_words = sum(_words_of(field.type) for field in self._fixed)
        self.bits = {f.name: i for i, f in enumerate(f for f in self.fields if f.nullable)}
        self.dtype = self._dtype()
        self.template = self._template()
        offsets = [self.word(field.name) for field in self.fields if field.heap]
        first_text = HEADER_WORDS + self.fixed_words
        self.heap_words = np.array(
            [*range(first_text, first_text + self.texts), *offsets], np.int64
        )

    @property
    def words(self) -> int:
        """Words of a record."""
        return self.dtype.itemsize // 8

    @property
    def fields_start(self) -> int:
        """The first word behind the key."""
        return HEADER_WORDS + self.fixed_words + self.texts

    def word(self, name: str) -> int:
        """Return the position of a field of whole words, counted in words."""
        fields = self.dtype.fields
        assert fields is not None
        return int(fields[name][1]) // 8

    def field(self, name: str) -> RecordField:
        """Return the field of that name; raise KeyError if there is none."""
        return next(field for field in self.fields if field.name == name)

    def pack(self, batch: Batch) -> PackedKeys:
        """Return the keys of a batch, which has the key columns and perhaps others.

        Raises:
            InputError: a key column has another type than the layout, or a text is too long.
        """
        rows = batch.num_rows
        nulls = _null_bits(batch, self.keys.names)
        parts = []
        for field in (*self._fixed, *self._text):
            column = batch.column(field.name)
            if column.type != field.type:
                msg = (
                    f"key column {field.name!r} is {column.type} and was {field.type} before: cast"
                    " it to one type"
                )
                raise InputError(msg)
            words = text_words(field.name, column) if column.offsets is not None else None
            if words is None:
                words = _fixed_words(column)
            if column.validity is not None and nulls.size:
                words = np.where(column.validity[:, None], words, np.uint64(0))
            parts.append(words)
        if len(parts) == 1:
            packed = np.require(parts[0], np.uint64, ["C", "A"])
        elif parts:
            packed = np.concatenate(parts, axis=1)
        else:
            packed = np.empty((rows, 0), np.uint64)
        return PackedKeys(packed, nulls, batch)

    def key_columns(
        self,
        records: npt.NDArray[Any],
        slots: npt.NDArray[np.int64] | slice,
        memory: npt.NDArray[np.uint8],
    ) -> list[Column]:
        """Return the key columns of the records `slots`.

        Args:
            records: of `dtype`.
            slots: int64 (n,), or a slice: of records that are copies, all.
            memory: the log, in which references are positions.
        """
        nulls = records["#link"][slots] >> np.uint64(8) & np.uint64((1 << KEY_COLUMNS_MAX) - 1)
        any_null = bool(nulls.any())
        words = records["#key"][slots] if self.fixed_words + self.texts else _NO_WORDS
        found: dict[str, Column] = {}
        at = 0
        for field in (*self._fixed, *self._text):
            validity = None
            if any_null:
                valid = nulls >> np.uint64(self.keys.index(field.name)) & np.uint64(1) == 0
                validity = None if bool(valid.all()) else valid
            if field.type.kind == "bytes":
                column = column_of_references(field.type, words[:, at], validity, memory)
                at += 1
            else:
                width = _words_of(field.type)
                data = _storage_of(field.type, words[:, at : at + width])
                column = Column(field.type, data, None, validity)
                at += width
            found[field.name] = column
        return [found[name] for name in self.keys.names]

    def value_column(
        self,
        name: str,
        kind: DataType,
        records: npt.NDArray[Any] | Mapping[str, npt.NDArray[Any]],
        memory: npt.NDArray[np.uint8],
    ) -> Column:
        """Return the values of a `heap` field as a column of `kind`, null where there is none.

        Args:
            name: the field.
            kind: text or binary.
            records: of `dtype`, (n,); or its fields `name` and "#set", by name.
            memory: the log, in which references are positions.
        """
        valid = (records["#set"] >> np.uint64(self.bits[name])) & np.uint64(1) == 1
        return column_of_references(kind, records[name], valid, memory)

    def _check(self) -> None:
        names = [field.name for field in self.fields]
        for name in names:
            if names.count(name) > 1 or name.startswith("#"):
                msg = f"a record cannot have the field {name!r} twice, or one that begins with '#'"
                raise InputError(msg)
        if len(self.keys) > KEY_COLUMNS_MAX:
            msg = f"a key of {len(self.keys)} columns; the limit is {KEY_COLUMNS_MAX}"
            raise InputError(msg)
        if sum(field.nullable for field in self.fields) > NULLABLE_FIELDS_MAX:
            msg = f"more than {NULLABLE_FIELDS_MAX} nullable values per key: use two operators"
            raise InputError(msg)

    def _dtype(self) -> np.dtype[Any]:
        word = np.dtype("<u8")
        names: list[str] = ["#hash", "#link"]
        formats: list[Any] = [word, word]
        offsets = [0, 8]
        key_words = self.fixed_words + self.texts
        end = 8 * HEADER_WORDS
        if key_words:
            names.append("#key")
            formats.append((word, (key_words,)))
            offsets.append(end)
            end += 8 * key_words
        if self.bits:
            names.append("#set")
            formats.append(word)
            offsets.append(end)
            end += 8
        for field in sorted(self.fields, key=lambda field: -_alignment(field.dtype)):
            step = _alignment(field.dtype)
            end = -(-end // step) * step
            names.append(field.name)
            formats.append(field.dtype)
            offsets.append(end)
            end += field.dtype.itemsize
        size = -(-end // 8) * 8
        parts = {"names": names, "formats": formats, "offsets": offsets, "itemsize": size}
        return np.dtype(parts)  # type: ignore[call-overload]  # numpy's stubs want a TypedDict

    def _template(self) -> Words:
        record = np.zeros(1, self.dtype)
        for field in self.fields:
            record[field.name] = field.initial
        return record.view(np.uint64).copy()


def copy_of_records(records: npt.NDArray[Any], slots: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    """Return copies of some records: (n,) for `slots` of int64 (n,).

    An index of numpy copies each record field by field, and takes twenty times as long.
    """
    return records.take(slots)


def column_of_references(
    kind: DataType,
    references: Words,
    validity: npt.NDArray[np.bool_] | None,
    memory: npt.NDArray[np.uint8],
) -> Column:
    """Return a column of the bytes that references point to, copied.

    Args:
        kind: the type of the column, of kind "bytes".
        references: uint64 (n,).
        validity: where there is a value, bool (n,); None: everywhere.
        memory: the log.
    """
    lengths = (references & np.uint64(VALUE_BYTES_MAX)).astype(np.int64)
    if validity is not None:
        lengths = np.where(validity, lengths, 0)
    offsets = np.zeros(len(references) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    if offsets[-1] > np.iinfo(np.int32).max:
        msg = "more than 2 GiB of text in one column"
        raise InputError(msg)
    pool = np.empty(offsets[-1], np.uint8)
    starts = (references >> np.uint64(LENGTH_BITS)).view(np.int64)
    copy_values(memory.ctypes.data, starts, offsets, pool)
    return Column(kind, pool, offsets.astype(np.int32), validity)


def _alignment(dtype: np.dtype[Any]) -> int:
    if dtype.base.kind == "V":
        return 8 if dtype.itemsize >= 8 else 1
    return dtype.alignment


def _words_of(kind: DataType) -> int:
    return -(-kind.width // 8)


def _null_bits(batch: Batch, names: Sequence[str]) -> npt.NDArray[np.uint32]:
    nulls = np.empty(0, np.uint32)
    for bit, name in enumerate(names):
        column = batch.column(name)
        if column.null_count and column.validity is not None:
            if not nulls.size:
                nulls = np.zeros(batch.num_rows, np.uint32)
            nulls |= (~column.validity).astype(np.uint32) << np.uint32(bit)
    return nulls


def _fixed_words(column: Column) -> Words:
    """Return the words of a column of fixed width: uint64 (n, words)."""
    data, width = column.data, column.type.width
    if data.dtype.kind == "f":
        canonical = data + data.dtype.type(0)  # turns -0.0 into 0.0
        canonical[np.isnan(canonical)] = np.nan
        data = canonical
    if width == 8:
        return data.view(np.uint64)[:, None]
    if width < 8 and data.dtype.kind != "V":
        return data.view(f"<u{width}").astype(np.uint64)[:, None]
    padded = np.zeros((len(data), 8 * _words_of(column.type)), np.uint8)
    padded[:, :width] = np.ascontiguousarray(data).view(np.uint8).reshape(-1, width)
    return padded.view(np.uint64)


def _storage_of(kind: DataType, words: Words) -> npt.NDArray[Any]:
    """Return the stored values of key words: the inverse of `_fixed_words`."""
    width = kind.width
    if width == 8:
        return np.ascontiguousarray(words[:, 0]).view(kind.storage)
    if width < 8 and kind.storage.kind != "V":
        return words[:, 0].astype(f"<u{width}").view(kind.storage)
    raw = np.ascontiguousarray(words).view(np.uint8)[:, :width]
    return np.ascontiguousarray(raw).reshape(-1).view(kind.storage)


def text_words(name: str, column: Column) -> Words:
    """Return address and length of each value: uint64 (n, 2)."""
    assert column.offsets is not None
    words = np.empty((len(column), 2), np.uint64)
    words[:, 0] = column.data.ctypes.data + column.offsets[:-1].astype(np.int64)
    lengths = np.diff(column.offsets)
    if len(lengths) and int(lengths.max()) > VALUE_BYTES_MAX:
        msg = f"{name!r} has a value of {lengths.max():,} bytes; at most {VALUE_BYTES_MAX:,} fit"
        raise InputError(msg)
    words[:, 1] = lengths
    return words
