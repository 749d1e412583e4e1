"""The inputs that the tests of the streaming suite share."""

from __future__ import annotations

import pytest

from tests.whale_ray.lab.bench.streaming_rows import make_few, make_inputs
from whale_ray.lab.bench.streaming.inputs import InputFiles


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> InputFiles:
    return make_inputs(tmp_path_factory.mktemp("streams"))


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> InputFiles:
    return make_few(tmp_path_factory.mktemp("few"))
