"""The public surface: its names, that each exists, and what building costs."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from types import ModuleType
from typing import Any

import pytest

import whale_ray as whale
from whale_ray.configs import errors as errors_at_home

PUBLIC = [
    "AggregateFunction", "Batch", "CoProcess", "ConnectedStream", "Explanation", "Expression",
    "GroupedRows", "GroupedStream", "InstanceContext", "Job", "KeyedCoProcess", "KeyedProcess",
    "Output", "Process", "Row", "Schema", "Settings", "SinkHandle", "Stream", "Topology",
    "__version__", "attach", "col", "columns", "compiled", "count_window", "errors", "functions",
    "interval", "lit", "load_settings", "processing_time", "read_state", "resume",
    "run", "session_window", "sinks", "sources", "state", "submit", "testing", "transports",
    "when", "window",
]  # fmt: skip

SOURCES = [
    "Source", "SourceReader", "arrow", "batches", "csv", "growing_folder", "ipc", "iterable",
    "json_lines", "kafka", "micro_batches", "pandas", "parquet", "poisson", "ray_dataset", "spark",
]  # fmt: skip

SINKS = [
    "CommitId", "Sink", "SinkResult", "SinkWriter", "Staged", "collect", "csv", "delta", "each",
    "json_lines", "kafka", "parquet", "postgres", "print", "ray_dataset", "spark",
]  # fmt: skip

HEAVY = ["numba", "llvmlite", "pandas", "pyspark", "ray", "raydp"]


def test_the_names_are_these() -> None:
    assert whale.__all__ == PUBLIC == sorted(PUBLIC)
    assert dir(whale) == PUBLIC
    assert whale.sources.__all__ == dir(whale.sources) == SOURCES == sorted(SOURCES)
    assert whale.sinks.__all__ == dir(whale.sinks) == SINKS == sorted(SINKS)
    assert len(set(whale.functions.__all__)) == len(whale.functions.__all__)
    assert {"upper", "coalesce", "date_trunc"} <= set(whale.functions.__all__)


@pytest.mark.parametrize("name", PUBLIC)
def test_every_name_exists_and_is_documented(name: str) -> None:
    found: Any = getattr(whale, name)
    if name != "__version__":
        assert found.__doc__


@pytest.mark.parametrize(
    ("module", "name"),
    [
        (module, name)
        for module in (whale.sources, whale.sinks, whale.functions)
        for name in module.__all__
    ],
    ids=lambda value: value.__name__ if isinstance(value, ModuleType) else value,
)
def test_every_name_of_a_namespace_exists_and_is_documented(module: ModuleType, name: str) -> None:
    assert getattr(module, name).__doc__


def test_all_errors_are_public() -> None:
    named = {
        name
        for name, value in vars(errors_at_home).items()
        if isinstance(value, type) and issubclass(value, Exception)
    }
    assert set(whale.errors.__all__) == named
    assert whale.errors.__all__ == sorted(named)
    assert all(getattr(whale.errors, name) is getattr(errors_at_home, name) for name in named)


def test_a_mistyped_name_is_corrected() -> None:
    with pytest.raises(AttributeError) as caught:
        whale.Topolgy  # noqa: B018 - the attribute access is the test
    assert str(caught.value) == (
        "module 'whale_ray' has no attribute 'Topolgy': did you mean 'Topology'?"
    )
    with pytest.raises(AttributeError, match=r"no attribute 'qqq'$"):
        whale.qqq  # noqa: B018 - the attribute access is the test
    with pytest.raises(AttributeError, match="no attribute 'pulsar'"):
        whale.sources.pulsar  # noqa: B018 - the mistake under test
    with pytest.raises(AttributeError, match="no attribute 'pulsar'"):
        whale.sinks.pulsar  # noqa: B018 - the mistake under test


def run_alone(program: str) -> dict[str, Any]:
    """Run a program in a fresh interpreter in which heavy modules cannot even be found."""
    blocked = f"""
        import json, sys
        HEAVY = {HEAVY!r}
        class Refuse:
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] in HEAVY:
                    raise ImportError(f"{{name}} must not be imported")
        sys.meta_path.insert(0, Refuse())
    """
    source = textwrap.dedent(blocked) + textwrap.dedent(program)
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def test_only_a_topology_runs() -> None:
    stream = whale.Topology("whole").source(whale.sources.iterable([{"n": 1}]), id="rows")
    given: list[Any] = [stream, stream.sink(whale.sinks.collect(), id="out"), None]
    for one in given:
        for start in (whale.run, whale.submit):
            with pytest.raises(whale.errors.UsageError, match="run and submit take a topology, no"):
                start(one)


def test_importing_brings_nothing_along() -> None:
    found = run_alone("""
        before = set(sys.modules)
        import whale_ray
        print(json.dumps({"new": sorted(set(sys.modules) - before)}))
    """)
    ours = [name for name in found["new"] if name.startswith("whale_ray")]
    assert ours == ["whale_ray"]
    assert "numpy" not in found["new"]


def test_building_and_explaining_start_nothing_and_import_nothing_heavy() -> None:
    found = run_alone("""
        import os, threading
        import whale_ray as whale

        class Match(whale.CoProcess):
            def on_left(self, batch, out): pass
            def on_right(self, batch, out): pass

        class Best(whale.Process):
            def on_batch(self, batch, out): pass

        topology = whale.Topology("ride-hailing")
        left = topology.source(whale.sources.iterable([{"a": 1}]), id="left", event_time="a",
                               event_time_unit="s")
        right = topology.source(whale.sources.poisson(5, lambda rows, _: {"b": rows}), id="right")
        (left.filter(whale.col("a") > 0, id="valid")
             .with_column("c", whale.functions.upper(whale.col("a").cast("string")))
             .map(lambda row: row)
             .map(whale.columns(lambda batch: batch))
             .key_by("a")
             .connect(right.broadcast())
             .process(Match, id="match", parallelism=16, event_time_order=False)
             .key_by("b").process(Best, parallelism=4)
             .sink(whale.sinks.parquet("out/"), id="out"))
        right.sink(whale.sinks.collect(), id="kept")
        explanation = topology.explain(workers=4)
        html = explanation._repr_html_()
        print(json.dumps({
            "text": str(explanation), "html": len(html), "threads": threading.active_count(),
            "children": os.path.exists(f"/proc/self/task/{os.getpid()}/children")
                and open(f"/proc/self/task/{os.getpid()}/children").read(),
            "segments": [name for name in os.listdir("/dev/shm")
                if name.startswith("whale-ray-") and str(os.getpid()) in name.split("-")],
            "heavy": [name for name in HEAVY if name in sys.modules],
        }))
    """)
    assert found["heavy"] == []
    assert found["threads"] == 1
    assert not found["children"]
    assert found["segments"] == []
    assert "total:" in found["text"]
    assert found["html"] > 1000
