"""The texts of NEXMark's events: names, channels, random letters."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

__all__ = [
    "CHANNELS",
    "CITIES",
    "FIRST_NAMES",
    "LAST_NAMES",
    "STATES",
    "URLS",
    "digits",
    "joined",
    "letters",
]

STATES = pa.array(["AZ", "CA", "ID", "OR", "WA", "WY"])
CITIES = pa.array(
    [
        "Phoenix",
        "Los Angeles",
        "San Francisco",
        "Boise",
        "Portland",
        "Bend",
        "Redmond",
        "Seattle",
        "Kent",
        "Cheyenne",
    ]
)
FIRST_NAMES = pa.array(
    [
        "Peter",
        "Paul",
        "Luke",
        "John",
        "Saul",
        "Vicky",
        "Kate",
        "Julie",
        "Sarah",
        "Deiter",
        "Walter",
    ]
)
LAST_NAMES = pa.array(
    ["Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris"]
)

_HOT = ("Google", "Facebook", "Baidu", "Apple")
_OTHER_CHANNELS = 10_000
CHANNELS = pa.array([*_HOT, *(f"channel-{number}" for number in range(_OTHER_CHANNELS))])
"""The four hot channels, then the others."""
URLS = pa.array(
    [
        f"https://www.nexmark.com/{number % 23}/{number % 29}/{number}/item.htm?query=1"
        + (f"&channel_id={number}" if number % 10 else "")
        for number in range(len(CHANNELS))
    ]
)
"""The page of each channel; nine of ten name it."""


def letters(random: np.random.Generator, sizes: npt.NDArray[np.int64]) -> pa.Array:
    """Return texts of random small letters; `sizes` in bytes, shape (n,)."""
    offsets = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    data = random.integers(ord("a"), ord("z") + 1, int(offsets[-1]), dtype=np.uint8)
    return pa.StringArray.from_buffers(len(sizes), pa.py_buffer(offsets), pa.py_buffer(data))


def digits(random: np.random.Generator, count: int) -> pa.Array:
    """Return texts such as "1234 5678 9012 3456"."""
    groups = [
        pc.utf8_lpad(pa.array(random.integers(0, 10_000, count)).cast(pa.string()), 4, "0")
        for _ in range(4)
    ]
    return pc.binary_join_element_wise(*groups, " ")


def joined(*parts: pa.Array | str) -> pa.Array:
    """Return the parts of each row, one after another."""
    return pc.binary_join_element_wise(*parts, "")
