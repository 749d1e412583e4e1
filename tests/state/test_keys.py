"""Key hashes against XXH64 in plain Python, golden values, and the distribution of keys."""

from __future__ import annotations

import datetime
import decimal
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whale_ray.configs.errors import InputError
from whale_ray.state.keys import (
    exact_hashes_within,
    hash_keys,
    is_among,
    stable_partition,
    virtual_node_of,
)
from whale_ray.transport.wire.batch import Batch
from whale_ray.transport.wire.column import Column
from whale_ray.transport.wire.types import DataType, Schema

_MASK = (1 << 64) - 1
_P1, _P2, _P3, _P4, _P5 = (
    0x9E3779B185EBCA87,
    0xC2B2AE3D27D4EB4F,
    0x165667B19E3779F9,
    0x85EBCA77C2B2AE63,
    0x27D4EB2F165667C5,
)


def _rotate(value: int, bits: int) -> int:
    return ((value << bits) | (value >> (64 - bits))) & _MASK


def _lane(accumulator: int, value: int) -> int:
    return _rotate((accumulator + value * _P2) & _MASK, 31) * _P1 & _MASK


def xxh64(data: bytes, seed: int) -> int:
    """XXH64 in plain Python, after its specification."""
    rest = data
    if len(data) >= 32:
        lanes = [(seed + _P1 + _P2) & _MASK, (seed + _P2) & _MASK, seed, (seed - _P1) & _MASK]
        while len(rest) >= 32:
            lanes = [
                _lane(lane, int.from_bytes(rest[8 * at : 8 * at + 8], "little"))
                for at, lane in enumerate(lanes)
            ]
            rest = rest[32:]
        turns = (1, 7, 12, 18)
        value = sum(_rotate(lane, turn) for lane, turn in zip(lanes, turns, strict=True)) & _MASK
        for lane in lanes:
            value = ((value ^ _lane(0, lane)) * _P1 + _P4) & _MASK
    else:
        value = (seed + _P5) & _MASK
    value = (value + len(data)) & _MASK
    while len(rest) >= 8:
        value ^= _lane(0, int.from_bytes(rest[:8], "little"))
        value = (_rotate(value, 27) * _P1 + _P4) & _MASK
        rest = rest[8:]
    if len(rest) >= 4:
        value ^= int.from_bytes(rest[:4], "little") * _P1 & _MASK
        value = (_rotate(value, 23) * _P2 + _P3) & _MASK
        rest = rest[4:]
    for byte in rest:
        value = _rotate(value ^ (byte * _P5 & _MASK), 11) * _P1 & _MASK
    value = (value ^ (value >> 33)) * _P2 & _MASK
    value = (value ^ (value >> 29)) * _P3 & _MASK
    return value ^ (value >> 32)


def _hashes(values: list[Any], kind: str) -> list[int]:
    batch = Batch.from_pydict({"k": values}, Schema.of(k=kind))
    return hash_keys(batch, ["k"])[0].tolist()


def test_the_oracle_has_the_published_values() -> None:
    assert xxh64(b"", 0) == 0xEF46DB3751D8E999
    assert xxh64(b"a", 0) == 0xD24EC4F1A98C6E5B
    assert xxh64(b"abc", 0) == 0x44BC2CF5AD770999


@settings(max_examples=60, deadline=None)
@given(st.lists(st.binary(max_size=100), min_size=1, max_size=8))
def test_bytes_hash_as_xxh64(values: list[bytes]) -> None:
    assert _hashes(values, "binary") == [xxh64(value, 42) for value in values]


@pytest.mark.parametrize("size", [0, 1, 3, 4, 5, 7, 8, 9, 12, 31, 32, 33, 63, 64, 65, 100])
def test_every_length_of_text(size: int) -> None:
    text = ("whale✓" * 40)[:size]
    assert _hashes([text], "string") == [xxh64(text.encode(), 42)]
    assert _hashes([text], "large_string") == _hashes([text], "string")


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=8))
def test_integers_hash_as_xxh64_of_eight_bytes(values: list[int]) -> None:
    wanted = [xxh64(value.to_bytes(8, "little", signed=True), 42) for value in values]
    assert _hashes(values, "int64") == wanted


_NOON = datetime.datetime(2008, 5, 17, 12)  # noqa: DTZ001 - a timestamp without a zone


@pytest.mark.parametrize(
    ("value", "kind", "wanted"),
    [
        (0, "int64", 0xB71B47EBDA15746C),
        (5, "int32", 0x56C2FCE454766645),
        (-1, "int64", 0x358AE035BFB46FD2),
        (2**64 - 1, "uint64", 0x358AE035BFB46FD2),
        (True, "bool", 0x9ED50FD59358D232),  # also what Spark's xxhash64(1L) is
        (1.5, "float64", 0x6B63CE66FF6C0CB6),
        (-0.0, "float32", 0xB71B47EBDA15746C),
        ("", "string", 0x98B1582B0977E704),
        ("new_abboip", "string", 0x0E81BDD75B1AAF5E),
        ("Straße", "string", 0x5430B9928396B68A),
        ("x" * 40, "large_string", 0xB5C5ECA7987F0CB4),
        (b"\x00\xff", "binary", 0x0C3631B125343C22),
        (_NOON, "timestamp[ms]", 0xB5A1DBFADED76962),
        (_NOON.date(), "date32", 0xFA030175955A9F0C),
        (datetime.time(12), "time64[us]", 0x631CD5A4C29368C6),
        (datetime.timedelta(seconds=90), "duration[s]", 0x11CED19502CA1C75),
        (decimal.Decimal("-1.50"), "decimal128(10, 2)", 0x52AF0BB1A0E0677D),
    ],
)
def test_golden_values_never_change(value: Any, kind: str, wanted: int) -> None:
    assert _hashes([value], kind) == [wanted]


def test_width_does_not_matter() -> None:
    kinds = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
    assert len({tuple(_hashes([0, 5, 127], kind)) for kind in kinds}) == 1
    assert _hashes([-5], "int8") == _hashes([-5], "int64")
    assert _hashes([True, False], "bool") == _hashes([1, 0], "int32")
    assert _hashes([1.5, -2.25], "float16") == _hashes([1.5, -2.25], "float64")


def test_equal_floats_have_equal_hashes() -> None:
    zero, minus_zero = _hashes([0.0, -0.0], "float64")
    assert zero == minus_zero
    payload = np.array([0x7FF8_0000_0000_0001, 0xFFF8_0000_0000_0000], np.uint64).view(np.float64)
    batch = Batch.from_pydict({"k": payload})
    assert set(hash_keys(batch, ["k"])[0].tolist()) == set(_hashes([math.nan], "float64"))


def test_units_and_zones_do_not_matter() -> None:
    noon = datetime.datetime(2008, 5, 17, 12, tzinfo=datetime.UTC)
    kinds = [f"timestamp[{unit}, tz=UTC]" for unit in ("s", "ms", "us", "ns")]
    kinds.append("timestamp[ms, tz=America/Los_Angeles]")
    assert len({tuple(_hashes([noon], kind)) for kind in kinds}) == 1
    day = datetime.date(2008, 5, 17)
    assert _hashes([day], "date32") == _hashes([day], "date64")
    assert _hashes([datetime.timedelta(1)], "duration[s]") == _hashes(
        [datetime.timedelta(1)], "duration[us]"
    )


@pytest.mark.parametrize(
    ("kind", "factor"), [("timestamp[s]", 10**9), ("time64[us]", 10**3), ("date64", 10**6)]
)
def test_hashes_of_instants_are_exact_as_far_as_nanoseconds_can_tell(
    kind: str, factor: int
) -> None:
    data_type = DataType.parse(kind)
    most = exact_hashes_within(data_type)
    assert most == (2**63 - 1) // factor
    equal = 2**64 // math.gcd(2**64, factor)  # the least distance of values with one word
    assert most < equal // 2
    values = np.array([0, equal, most, -most, most - 1], np.int64)
    batch = Batch(Schema.of(at=kind), [Column(data_type, values)], len(values))
    hashes = hash_keys(batch, ["at"])[0].tolist()
    assert hashes[0] == hashes[1] and len(set(hashes[1:])) == 4


def test_hashes_are_exact_for_words_and_for_no_bytes() -> None:
    for kind in ("bool", "int64", "uint64", "float", "double", "timestamp[ns]", "date32"):
        assert exact_hashes_within(DataType.parse(kind)) == math.inf
    for kind in ("string", "fixed_size_binary[8]", "decimal128(9, 2)"):
        assert exact_hashes_within(DataType.parse(kind)) < 0


@settings(max_examples=60, deadline=None)
@given(st.integers(-(10**34), 10**34), st.integers(0, 4))
def test_decimals_hash_by_value(number: int, scale: int) -> None:
    value = decimal.Decimal(number).scaleb(-scale, decimal.Context(prec=60))
    residue = number * pow(10, -scale, 2**61 - 1) % (2**61 - 1)
    wanted = [xxh64(residue.to_bytes(8, "little"), 42)]
    assert _hashes([value], "decimal128(38, 4)") == wanted
    if len(str(abs(number))) <= 30:
        assert _hashes([value], "decimal128(38, 7)") == wanted


def test_fixed_size_binary_hashes_as_its_bytes() -> None:
    values = [b"abcde", b"vwxyz"]
    assert _hashes(values, "fixed_size_binary(5)") == _hashes(values, "binary")


def test_slices_and_gathered_rows_keep_their_hashes() -> None:
    batch = Batch.from_pydict(
        {"text": [f"vehicle-{n}" * (n % 5) for n in range(50)], "n": np.arange(50, dtype=np.int16)}
    )
    whole, _ = hash_keys(batch, ["text", "n"])
    assert np.array_equal(hash_keys(batch.slice(7, 31), ["text", "n"])[0], whole[7:31])
    rows = np.array([40, 3, 3, 17])
    assert np.array_equal(hash_keys(batch.take(rows), ["text", "n"])[0], whole[rows])
    times = batch.with_column("f", np.arange(50) / 3)
    assert np.array_equal(hash_keys(times, ["text", "n"])[0], whole)


def test_columns_are_chained_in_order() -> None:
    batch = Batch.from_pydict({"a": [1, 2], "b": [2, 1]})
    forward, _ = hash_keys(batch, ["a", "b"])
    backward, _ = hash_keys(batch, ["b", "a"])
    first = xxh64((1).to_bytes(8, "little"), 42)
    assert forward[0] == xxh64((2).to_bytes(8, "little"), first)
    assert forward[0] != backward[0]
    assert forward[0] == backward[1]


def test_nulls_are_reported_and_leave_other_rows_alone() -> None:
    schema = Schema.of(a="string", b="int32")
    batch = Batch.from_pydict({"a": ["x", None, "y", "z"], "b": [1, 2, None, 4]}, schema)
    hashes, null_rows = hash_keys(batch, ["a", "b"])
    assert null_rows is not None
    assert null_rows.tolist() == [False, True, True, False]
    full = Batch.from_pydict({"a": ["x", "?", "y", "z"], "b": [1, 2, 3, 4]}, schema)
    clean, none = hash_keys(full, ["a", "b"])
    assert none is None
    assert hashes[[0, 3]].tolist() == clean[[0, 3]].tolist()
    assert hashes[1] == xxh64((2).to_bytes(8, "little"), 42)
    assert hash_keys(batch.slice(0, 1), ["a", "b"])[1] is None


def test_an_unknown_column_is_named() -> None:
    batch = Batch.from_pydict({"vehicle_id": [1]})
    with pytest.raises(InputError, match="no column 'vehicle'; did you mean 'vehicle_id'"):
        hash_keys(batch, ["vehicle"])


def test_no_rows() -> None:
    batch = Batch.empty(Schema.of(a="string", b="int32", c="decimal128(5, 2)"))
    hashes, null_rows = hash_keys(batch, ["a", "b", "c"])
    assert hashes.shape == (0,)
    assert null_rows is None


# ---- quality ----------------------------------------------------------------------------------

_KEYS: dict[str, Callable[[int], Any]] = {
    "consecutive integers": lambda n: np.arange(n, dtype=np.int64),
    "multiples of 4096": lambda n: np.arange(n, dtype=np.int64) << 12,
    "floats": lambda n: np.arange(n) / 8,
    "plates": lambda n: [f"SF-{number:06d}" for number in range(n)],
    "names": lambda n: [f"new_a{chr(97 + number % 26)}{number:x}" for number in range(n)],
}


@pytest.mark.parametrize("kind", _KEYS)
@pytest.mark.parametrize("buckets", [16, 1024])
def test_keys_spread_evenly(kind: str, buckets: int) -> None:
    keys = 65_536
    hashes, _ = hash_keys(Batch.from_pydict({"k": _KEYS[kind](keys)}), ["k"])
    for places in (virtual_node_of(hashes, buckets), (hashes % np.uint64(buckets)).astype(int)):
        counts = np.bincount(places, minlength=buckets)
        expected = keys / buckets
        chi_square = float(((counts - expected) ** 2 / expected).sum())
        freedom = buckets - 1
        # Five standard deviations of the chi-square distribution about its mean.
        assert abs(chi_square - freedom) < 5 * math.sqrt(2 * freedom)


def test_one_bit_of_the_key_flips_half_of_the_hash() -> None:
    keys = np.random.default_rng(7).integers(0, 2**62, 2_000, dtype=np.int64)
    base, _ = hash_keys(Batch.from_pydict({"k": keys}), ["k"])
    for bit in range(0, 64, 7):
        turned = keys ^ np.array(1 << bit, np.uint64).view(np.int64)
        other, _ = hash_keys(Batch.from_pydict({"k": turned}), ["k"])
        flips = np.unpackbits((base ^ other).view(np.uint8).reshape(-1, 8), axis=1).mean(axis=0)
        assert np.abs(flips - 0.5).max() < 0.07


# ---- from the hash to the instance ---------------------------------------------------------------


def test_virtual_nodes_are_the_top_bits() -> None:
    hashes = np.array([0, 2**64 - 1, 1 << 63, (1 << 63) - 1], np.uint64)
    assert virtual_node_of(hashes, 1024).tolist() == [0, 1023, 512, 511]
    assert virtual_node_of(hashes, 1).tolist() == [0, 0, 0, 0]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 6), max_size=60), st.integers(7, 9))
def test_partition_is_a_stable_sort(instances: list[int], parallelism: int) -> None:
    given_instances = np.array(instances, np.int64)
    order, counts = stable_partition(given_instances, parallelism)
    assert order.tolist() == np.argsort(given_instances, kind="stable").tolist()
    assert counts.tolist() == np.bincount(given_instances, minlength=parallelism).tolist()


@pytest.mark.parametrize("wrong", [-1, 3])
def test_an_instance_that_does_not_exist_is_refused(wrong: int) -> None:
    with pytest.raises(InputError) as caught:
        stable_partition(np.array([0, 2, wrong, 1]), 3)
    assert str(caught.value) == f"row 2 is sent to instance {wrong}, and there are only 0 … 2"


def test_virtual_nodes_among_wanted_ones() -> None:
    nodes = np.array([3, 0, 7, 3])
    assert is_among(nodes, np.array([3, 4]), 8).tolist() == [True, False, False, True]
    assert is_among(nodes, np.array([], np.int64), 8).tolist() == [False] * 4
