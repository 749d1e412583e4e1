"""The inputs that the tests of the streaming suite share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.runs import QUICK_JAVA
from tests.whale_ray.lab.bench.streaming_rows import make_few, make_inputs
from whale_ray.lab.bench.streaming.inputs import InputFiles


@pytest.fixture(scope="module", autouse=True)
def _quick_flink() -> Iterator[None]:
    """Let Flink's Java, which is a program of its own, be as quick as Spark's in tests.

    By module: these folders are no packages, where "package" would mean the rest of the run.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JDK_JAVA_OPTIONS", QUICK_JAVA)
        yield


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> InputFiles:
    return make_inputs(tmp_path_factory.mktemp("streams"))


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> InputFiles:
    return make_few(tmp_path_factory.mktemp("few"))
