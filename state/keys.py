"""Assigns rows to virtual nodes by key: key → 64-bit hash → virtual node.

The hash is XXH64 (seed 42) of the key's canonical bytes, in UTF-8 for text and as one little-endian
64-bit integer for everything else; each further key column is hashed with the previous hash as its
seed, and a null does not change the hash. For bigint, string and binary columns this is Spark's
`xxhash64`. Equal keys have equal hashes in all types of a row of this table:

================== =============================================================================
type               canonical value
================== =============================================================================
bool, integers     the value modulo 2^64 (so int32 5, int64 5 and uint8 5 agree)
floats             the bits of its float64; -0.0 as 0.0, every NaN as the one of `math.nan`
date, timestamp,   nanoseconds modulo 2^64 (so seconds and milliseconds agree); a zone does not
time, duration     change the instant
decimal            value modulo the prime 2^61 - 1 (so 1.5 and 1.50 agree)
string, binary     its bytes, large or of fixed size alike
================== =============================================================================

Since rows are routed by the hash, it must never change: `tests/state/test_keys.py` has golden
values. The top bits select one of a fixed number of virtual nodes; `owners` says which instance
owns each, so that a change of parallelism moves whole virtual nodes.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numba
import numpy as np
import numpy.typing as npt

from ..configs.errors import InputError
from ..transport.atomics import inner, kernel
from ..transport.compiling import njit

if TYPE_CHECKING:
    from ..transport.wire.batch import Batch
    from ..transport.wire.column import Column
    from ..transport.wire.types import DataType

    Hashes = npt.NDArray[np.uint64]
    Integers = npt.NDArray[np.int64]

__all__ = [
    "exact_hashes_within",
    "hash_bytes",
    "hash_keys",
    "hash_words",
    "stable_partition",
    "virtual_node_of",
]

SEED = np.uint64(42)

_P1 = np.uint64(0x9E3779B185EBCA87)
_P2 = np.uint64(0xC2B2AE3D27D4EB4F)
_P3 = np.uint64(0x165667B19E3779F9)
_P4 = np.uint64(0x85EBCA77C2B2AE63)
_P5 = np.uint64(0x27D4EB2F165667C5)

_MERSENNE_61 = (1 << 61) - 1
#: Nanoseconds in one unit of a type; integers and booleans stay as they are.
_NANOSECONDS = defaultdict(
    lambda: 1,
    {"s": 10**9, "ms": 10**6, "us": 10**3, "date32": 86_400 * 10**9, "date64": 10**6},
)


def hash_keys(batch: Batch, columns: Sequence[str]) -> tuple[Hashes, npt.NDArray[np.bool_] | None]:
    """Hash the key of every row.

    Args:
        batch: the rows.
        columns: names of the key columns; their order matters.

    Returns:
        hashes: uint64, shape (num_rows,); the same key has the same hash in every process, on every
            machine and in every version. A row with a null in its key has a hash, too.
        null_rows: True where a key column is null, bool, shape (num_rows,); None if no key is.

    Raises:
        InputError: a column does not exist.
    """
    hashes = np.full(batch.num_rows, SEED, dtype=np.uint64)
    null_rows = None
    for name in columns:
        column = batch.column(name)
        known = column.validity
        before = None if known is None else hashes.copy()
        if column.type.kind == "bytes" or column.type.family == "fixed_size_binary":
            pool, offsets = _pool_and_offsets(column)
            _chain_bytes(pool, offsets, hashes)
        else:
            _chain_integers(_canonical_integers(column), hashes)
        if known is not None and before is not None:
            np.copyto(hashes, before, where=~known)
            null_rows = ~known if null_rows is None else null_rows | ~known
    if null_rows is not None and not null_rows.any():
        null_rows = None
    return hashes, null_rows


def exact_hashes_within(kind: DataType) -> float:
    """Return up to which magnitude different values of one key column have different hashes.

    XXH64 of one 64-bit word is a bijection, but instants beyond what 64 bits of nanoseconds can
    tell share words: 0 µs and −2^63 µs do.

    Returns:
        infinity if hashes of all values of the type are exact, −1 if none are.
    """
    if kind.kind != "fixed" or kind.storage.kind not in "biuf":
        return -1
    factor = _NANOSECONDS[kind.unit or kind.family]
    if factor == 1 or kind.width < 8:  # of narrow types, no two values are equal modulo 2^64
        return math.inf
    return ((1 << 63) - 1) // factor


def virtual_node_of(hashes: Hashes, virtual_nodes: int) -> Integers:
    """Return each hash's virtual node: its top log2(`virtual_nodes`) bits.

    Args:
        hashes: uint64, any shape.
        virtual_nodes: a power of two.
    """
    bits = virtual_nodes.bit_length() - 1
    if bits == 0:
        return np.zeros(hashes.shape, dtype=np.int64)
    return (hashes >> np.uint64(64 - bits)).view(np.int64)


def is_among(nodes: Integers, wanted: Integers, virtual_nodes: int) -> npt.NDArray[np.bool_]:
    """Return which of these virtual nodes are among the wanted ones, bool of the same shape.

    `np.isin` takes ten times as long for the few rows that a state is often moved in.
    """
    is_wanted = np.zeros(virtual_nodes, np.bool_)
    is_wanted[wanted] = True
    return is_wanted[nodes]


def stable_partition(instances: Integers, parallelism: int) -> tuple[Integers, Integers]:
    """Sort row numbers by instance, stably (a counting sort).

    Args:
        instances: the instance of each row, int64, shape (n,).
        parallelism: how many instances there are.

    Returns:
        order: row numbers, int64, shape (n,): first all of instance 0, then of instance 1, …
        counts: rows of each instance, int64, shape (parallelism,).

    Raises:
        InputError: an instance lies outside 0 … parallelism − 1.
    """
    order, counts, wrong = _counting_sort(_plain(instances, np.int64), parallelism)
    if wrong >= 0:
        msg = (
            f"row {wrong} is sent to instance {instances[wrong]}, and there are only"
            f" 0 … {parallelism - 1}"
        )
        raise InputError(msg)
    return order, counts


def _plain(array: npt.NDArray[Any], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return the array as the kernels need it: contiguous, aligned and of this type."""
    if array.dtype == dtype and array.flags.c_contiguous and array.flags.aligned:
        return array
    return np.require(array, dtype, ["C", "A"])


def _canonical_integers(column: Column) -> Integers:
    """Return the canonical value of each row (see the table above), int64, shape (rows,)."""
    data, kind = column.data, column.type
    if kind.scale is not None:
        halves = _plain(data.view(np.int64), np.int64)
        return _decimal_residues(halves, np.uint64(pow(10, -kind.scale, _MERSENNE_61)))
    if data.dtype.kind == "f":
        values = data.astype(np.float64) + 0.0  # turns -0.0 into 0.0
        values[np.isnan(values)] = np.nan
        return values.view(np.int64)
    integers = _plain(data.view(np.int64) if data.dtype.itemsize == 8 else data, np.int64)
    factor = _NANOSECONDS[kind.unit or kind.family]
    # Overflow may wrap: equal instants are equal modulo 2^64.
    return integers if factor == 1 else integers * np.int64(factor)


def _pool_and_offsets(column: Column) -> tuple[npt.NDArray[np.uint8], Integers]:
    if column.offsets is not None:
        return _plain(column.data, np.uint8), _plain(column.offsets, np.int32)
    width = column.data.dtype.itemsize
    pool = np.frombuffer(_plain(column.data, column.data.dtype).data, dtype=np.uint8)
    return pool, np.arange(0, len(pool) + 1, width, dtype=np.int32)


@njit(inline="always")
def _rotate(value: Any, bits: Any) -> Any:
    return (value << np.uint64(bits)) | (value >> np.uint64(64 - bits))


@njit(inline="always")
def _lane(accumulator: Any, value: Any) -> Any:
    return _rotate(accumulator + value * _P2, 31) * _P1


@njit(inline="always")
def _avalanche(value: Any) -> Any:
    value = (value ^ (value >> np.uint64(33))) * _P2
    value = (value ^ (value >> np.uint64(29))) * _P3
    return value ^ (value >> np.uint64(32))


@njit(inline="always")
def _read(pool: Any, at: Any, width: Any) -> Any:
    """Read `width` bytes, little-endian; LLVM compiles the loop to one load."""
    value = np.uint64(0)
    for byte in range(width):
        value |= np.uint64(pool[at + np.uint64(byte)]) << np.uint64(8 * byte)
    return value


_READ_ONLY_BYTES = numba.types.Array(numba.uint8, 1, "C", readonly=True)
_READ_ONLY_INT32 = numba.types.Array(numba.int32, 1, "C", readonly=True)
_READ_ONLY_INT64 = numba.types.Array(numba.int64, 1, "C", readonly=True)


@kernel(numba.void(_READ_ONLY_INT64, numba.uint64[::1]), releases_gil=True)
def _chain_integers(values: Any, hashes: Any) -> Any:
    """Hash each integer as eight bytes by XXH64, with the row's hash as seed, into `hashes`."""
    for row in range(len(values)):
        mixed = (hashes[row] + _P5 + np.uint64(8)) ^ _lane(np.uint64(0), np.uint64(values[row]))
        hashes[row] = _avalanche(_rotate(mixed, 27) * _P1 + _P4)


@kernel(
    numba.void(numba.types.Array(numba.uint64, 2, "C", readonly=True), numba.uint64[::1]),
    releases_gil=True,
)
def hash_words(words: Any, hashes: Any) -> None:
    """Hash keys of 64-bit integers, as `hash_keys` does: words uint64 (n, columns), hashes (n,)."""
    for row in range(len(hashes)):
        hashed = SEED
        for column in range(words.shape[1]):
            mixed = (hashed + _P5 + np.uint64(8)) ^ _lane(np.uint64(0), words[row, column])
            hashed = _avalanche(_rotate(mixed, 27) * _P1 + _P4)
        hashes[row] = hashed


@inner
def hash_bytes(pool: Any, at: Any, end: Any, seed: Any) -> Any:
    """Hash the bytes of a pool from one place to before another by XXH64, all of them uint64."""
    length = end - at
    value = seed
    if length >= np.uint64(32):
        first, second = value + _P1 + _P2, value + _P2
        third, fourth = value, value - _P1
        while at + np.uint64(32) <= end:
            first = _lane(first, _read(pool, at, 8))
            second = _lane(second, _read(pool, at + np.uint64(8), 8))
            third = _lane(third, _read(pool, at + np.uint64(16), 8))
            fourth = _lane(fourth, _read(pool, at + np.uint64(24), 8))
            at += np.uint64(32)
        value = _rotate(first, 1) + _rotate(second, 7)
        value += _rotate(third, 12) + _rotate(fourth, 18)
        for lane in (first, second, third, fourth):
            value = (value ^ _lane(np.uint64(0), lane)) * _P1 + _P4
    else:
        value += _P5
    value += length
    while at + np.uint64(8) <= end:
        value ^= _lane(np.uint64(0), _read(pool, at, 8))
        value = _rotate(value, 27) * _P1 + _P4
        at += np.uint64(8)
    if at + np.uint64(4) <= end:
        value = _rotate(value ^ (_read(pool, at, 4) * _P1), 23) * _P2 + _P3
        at += np.uint64(4)
    while at < end:
        value = _rotate(value ^ (np.uint64(pool[at]) * _P5), 11) * _P1
        at += np.uint64(1)
    return _avalanche(value)


@kernel(numba.void(_READ_ONLY_BYTES, _READ_ONLY_INT32, numba.uint64[::1]), releases_gil=True)
def _chain_bytes(pool: Any, offsets: Any, hashes: Any) -> Any:
    """Hash the bytes of each row, with the row's hash as seed, into `hashes`."""
    for row in range(len(hashes)):
        at, end = np.uint64(offsets[row]), np.uint64(offsets[row + 1])
        hashes[row] = hash_bytes(pool, at, end, hashes[row])


@njit(inline="always")
def _reduce(value: Any) -> Any:
    """Return a 64-bit value modulo 2^61 - 1: since 2^61 ≡ 1, the high bits are added."""
    prime = np.uint64(_MERSENNE_61)
    value = (value & prime) + (value >> np.uint64(61))
    return value - prime if value >= prime else value


@njit(inline="always")
def _multiply(left: Any, right: Any) -> Any:
    """Return left * right modulo 2^61 - 1, for factors below it."""
    low_mask = np.uint64(0x7FFFFFFF)
    left_high, left_low = left >> np.uint64(31), left & low_mask
    right_high, right_low = right >> np.uint64(31), right & low_mask
    middle = left_high * right_low + left_low * right_high
    # 2^62 ≡ 2; middle * 2^31 is split so that no sum exceeds 64 bits.
    total = np.uint64(2) * left_high * right_high + left_low * right_low
    total = _reduce(total) + _reduce(
        (middle >> np.uint64(30)) + ((middle & np.uint64(0x3FFFFFFF)) << np.uint64(31))
    )
    return _reduce(total)


@njit(numba.int64[::1](_READ_ONLY_INT64, numba.uint64), nogil=True, cache=True)
def _decimal_residues(halves: Any, inverse_scale: Any) -> Any:
    prime = np.uint64(_MERSENNE_61)
    residues = np.empty(len(halves) // 2, dtype=np.int64)
    for row in range(len(residues)):
        low, high = np.uint64(halves[2 * row]), halves[2 * row + 1]
        upper = _reduce(np.uint64(high))
        if high < 0:  # read as unsigned it is too large by 2^64 ≡ 8
            upper = _reduce(upper + prime - np.uint64(8))
        value = _reduce(_multiply(upper, np.uint64(8)) + _reduce(low))
        residues[row] = np.int64(_multiply(value, inverse_scale))
    return residues


@njit(
    numba.types.Tuple((numba.int64[::1], numba.int64[::1], numba.int64))(
        _READ_ONLY_INT64, numba.int64
    ),
    nogil=True,
    cache=True,
)
def _counting_sort(instances: Any, parallelism: Any) -> Any:
    counts = np.empty(parallelism, dtype=np.int64)  # numba compiles few functions of numpy's fast
    next_place = np.empty(parallelism, dtype=np.int64)
    order = np.empty(len(instances), dtype=np.int64)
    for instance in range(parallelism):
        counts[instance] = 0
    for row in range(len(instances)):
        instance = instances[row]
        if instance < 0 or instance >= parallelism:
            return order, counts, row
        counts[instance] += 1
    begin = 0
    for instance in range(parallelism):
        next_place[instance] = begin
        begin += counts[instance]
    for row in range(len(instances)):
        instance = instances[row]
        order[next_place[instance]] = row
        next_place[instance] += 1
    return order, counts, -1
