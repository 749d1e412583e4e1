"""The translation table: complete, rendered as Markdown, and naming what exists."""

from __future__ import annotations

import re

import pytest

import whale_ray
from whale_ray.operators.expressions import functions
from whale_ray.operators.expressions.expression import col
from whale_ray.operators.expressions.spark_names import (
    CAMEL_CASE,
    DIFFERENCES,
    OTHER_FUNCTIONS,
    RENAMED,
    spark_translation_table,
)


def test_every_method_named_in_it_exists() -> None:
    for name in CAMEL_CASE.values():
        assert callable(getattr(col("a"), name))


def test_the_table_is_markdown() -> None:
    lines = spark_translation_table().splitlines()
    assert lines[0] == "| PySpark | whale-ray |"
    assert "| `column.isNull(…)` | `column.is_null(…)` |" in lines
    assert len(lines) == 2 + len(RENAMED) + 1 + 2 + len(DIFFERENCES)
    for line in lines:
        assert line == "" or line.replace("\\|", "").count("|") in {3, 4}


def test_functions_are_listed_once_and_documented() -> None:
    assert len(functions.__all__) == len(set(functions.__all__))
    for name in functions.__all__:
        assert getattr(functions, name).__doc__


def test_functions_have_pysparks_names() -> None:
    """Compare with the names that pyspark 3.5 has, without starting it."""
    import ast
    from importlib.util import find_spec
    from pathlib import Path

    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    source = Path(spec.submodule_search_locations[0], "sql", "functions.py").read_text()
    theirs = {node.name for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}
    assert set(functions.__all__) <= theirs


def test_a_function_that_only_pyspark_has_says_what_to_write() -> None:
    offered = whale_ray.functions
    assert not OTHER_FUNCTIONS.keys() & set(offered.__all__)
    for name, hint in OTHER_FUNCTIONS.items():
        with pytest.raises(AttributeError, match=re.escape(hint)) as raised:
            getattr(offered, name)
        assert "\n" not in str(raised.value)
        for public in re.findall(r"whale\.(\w+)", hint):
            assert hasattr(whale_ray, public)
        if hint.startswith("whale-ray calls it "):
            assert hint.removeprefix("whale-ray calls it ") in offered.__all__
    for name, said in {"uper": "'uper': did you mean upper", "qqqqq": "has no 'qqqqq'$"}.items():
        with pytest.raises(AttributeError, match=said):
            getattr(offered, name)
