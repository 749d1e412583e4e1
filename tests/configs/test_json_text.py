"""JSON that any parser reads, compared with the value by a parser that refuses anything else."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whale_ray.configs.json_text import json_text

PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
VALUES = st.recursive(
    PLAIN, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20
)


def strictly_read(text: str) -> Any:
    def refuse(constant: str) -> None:
        raise ValueError(constant)

    return json.loads(text, parse_constant=refuse)


def same(value: Any, read: Any) -> bool:
    if isinstance(value, dict):
        return value.keys() == read.keys() and all(same(value[key], read[key]) for key in value)
    if isinstance(value, list):
        return len(value) == len(read) and all(map(same, value, read))
    if isinstance(value, float) and not math.isfinite(value):
        return isinstance(read, str) and repr(float(read)) == repr(value)
    return type(read) is type(value) and bool(read == value)


@given(VALUES)
def test_a_strict_parser_reads_what_was_written(value: Any) -> None:
    text = json_text(value)
    assert "\n" not in text
    assert same(value, strictly_read(text))


def test_what_json_does_not_have_is_made_text_or_refused() -> None:
    state = ({"sum": Decimal("1.50"), "mean": math.nan},)
    assert strictly_read(json_text(state, default=str)) == [{"sum": "1.50", "mean": "NaN"}]
    with pytest.raises(TypeError):
        json_text(state)
