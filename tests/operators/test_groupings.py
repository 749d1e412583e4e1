"""Groupings are plain values; mistakes are refused where they are made."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest

from whale_ray.configs.errors import TopologyError
from whale_ray.operators.groupings import (
    All,
    Custom,
    Direct,
    Forward,
    Global,
    Grouping,
    Key,
    LocalOrShuffle,
    Shuffle,
)


def by_region(batch: object, parallelism: int) -> list[int]:
    return [0]


_SHOWN = [
    (Forward(), "forward"),
    (Shuffle(), "shuffle"),
    (LocalOrShuffle(), "local or shuffle"),
    (All(), "all"),
    (Global(), "global"),
    (Key(("vehicle_id", "day")), "key by vehicle_id, day"),
    (Direct("instance"), "direct by instance"),
    (Custom(by_region), "custom by by_region"),
]


@pytest.mark.parametrize(("grouping", "shown"), _SHOWN)
def test_describe(grouping: Grouping, shown: str) -> None:
    assert grouping.describe() == shown


@pytest.mark.parametrize(("grouping", "_"), _SHOWN[:-1])
def test_equal_after_pickling(grouping: Grouping, _: str) -> None:
    assert pickle.loads(pickle.dumps(grouping)) == grouping
    assert hash(grouping) == hash(pickle.loads(pickle.dumps(grouping)))


def test_a_single_key_may_be_given_as_text() -> None:
    assert Key("vehicle_id") == Key(("vehicle_id",))  # type: ignore[arg-type]  # what is tested


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Key(()), "key_by needs at least one column: key_by('vehicle_id')"),
        (lambda: Key(("a", "b", "a")), "key_by names column 'a' twice: name it once"),
        (
            lambda: Key((3,)),
            "key_by takes column names, not int 3: compute the key with with_column first, then"
            " name it",
        ),
        (
            lambda: Direct(3),
            "direct takes the name of an integer column, not 3: direct('instance')",
        ),
        (
            lambda: Custom("x"),
            "partition_by takes a function (batch, parallelism) → instance numbers, not 'x'",
        ),
    ],
)
def test_mistakes(make: object, message: str) -> None:
    assert callable(make)
    with pytest.raises(TopologyError) as caught:
        make()
    assert str(caught.value) == message


def test_building_needs_no_heavy_module() -> None:
    code = (
        "import sys\n"
        "import whale_ray.operators.groupings, whale_ray.operators.process\n"
        "import whale_ray.operators.transforms, whale_ray.operators.expressions.functions as F\n"
        "from whale_ray.operators.expressions.expression import col\n"
        "str(F.upper('a') == col('b').cast('timestamp'))\n"
        "heavy = {'numba', 'pyarrow', 'pandas', 'ray', 'pyspark'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
