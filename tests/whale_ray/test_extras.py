"""A missing extra is reported in one line with the command, before its first use.

A package is hidden by an entry None in `sys.modules`, with which Python refuses to import it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.metadata import metadata

import pyarrow as pa
import pytest

import whale_ray as whale
from whale_ray import spark
from whale_ray.cli.main import main
from whale_ray.configs.errors import ResourceError
from whale_ray.configs.extras import EXTRAS, explain_lack, lacking, require_extra
from whale_ray.lab.bench.peers.sockets import load_zmq
from whale_ray.operators.sinks.base import to_pandas
from whale_ray.ray_bridge import to_ray_dataset

TABLE = pa.table({"n": [1, 2]})


@pytest.fixture
def hide(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return a function after which a package cannot be imported, as if it were not installed."""
    return lambda package: monkeypatch.setitem(sys.modules, package, None)


def test_a_missing_package_is_reported_with_its_use_and_the_command(
    hide: Callable[[str], None],
) -> None:
    assert explain_lack("spark", "a DataFrame") == ""
    require_extra("spark", "a DataFrame")
    hide("raydp")
    assert lacking("spark") == ("raydp",)
    with pytest.raises(ResourceError) as raised:
        require_extra("spark", "a DataFrame", "take Parquet")
    assert str(raised.value) == (
        "a DataFrame needs raydp, not installed here: "
        'pip install "whale-ray[spark]", or take Parquet'
    )


def _topology() -> whale.Topology:
    topology = whale.Topology("two-rows")
    topology.source(whale.sources.arrow(TABLE), id="rows").sink(whale.sinks.collect(), id="out")
    return topology


def _run_with(export: str) -> object:
    asked = {"port": {"prometheus_port": 9464}, "opentelemetry": {"opentelemetry": True}}[export]
    settings = {f"metrics.{name}": value for name, value in asked.items()}
    return whale.run(_topology(), settings=settings)


USES: dict[str, tuple[str, str, Callable[[], object]]] = {
    "a table as a frame": ("pandas", "pandas", lambda: to_pandas(TABLE)),
    "a result as a frame": (
        "pandas",
        "pandas",
        lambda: whale.run(_topology()).results("out").to_pandas(),
    ),
    "rows for a dataset": ("data", "fsspec", whale.sinks.ray_dataset),
    "a table as a dataset": ("data", "fsspec", lambda: to_ray_dataset(TABLE)),
    "rows for a table": ("delta", "deltalake", lambda: whale.sinks.delta("table")),
    "rows for a server": (
        "postgres",
        "psycopg",
        lambda: whale.sinks.postgres("dsn", "table"),
    ),
    "topics to read": (
        "kafka",
        "confluent_kafka",
        lambda: whale.sources.kafka("t", "b:1", schema={"n": "int64"}),
    ),
    "topics to write": ("kafka", "confluent_kafka", lambda: whale.sinks.kafka("t", "b:1")),
    "a port for Prometheus": ("prometheus", "prometheus_client", lambda: _run_with("port")),
    "metrics by OTLP": (
        "opentelemetry",
        "opentelemetry.exporter.otlp.proto.http",
        lambda: _run_with("opentelemetry"),
    ),
    "rows for a DataFrame": ("spark", "pyspark", whale.sinks.spark),
    "a table as a DataFrame": ("spark", "pyspark", lambda: spark.to_spark(TABLE)),
    "a session here": ("spark", "pyspark", lambda: spark.spark_locally("never").__enter__()),
    "a session on Ray": ("spark", "raydp", lambda: spark.spark_on_ray("never").__enter__()),
    "a peer": ("bench", "zmq", load_zmq),
}


@pytest.mark.parametrize("name", USES)
def test_what_needs_an_extra_asks_for_it_first(hide: Callable[[str], None], name: str) -> None:
    extra, package, use = USES[name]
    hide(package)
    with pytest.raises(ResourceError, match=rf'{package}.*: pip install "whale-ray\[{extra}\]"'):
        use()


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("ride-hailing", "add --on processes, which works without Spark"),
        ("ride-hailing --data .", "generate the input, and add --on processes"),
        ("stock-exchange --data .", "leave it out: generated orders need no Spark"),
    ],
)
def test_an_application_says_how_to_do_without_spark(
    hide: Callable[[str], None],
    line: str,
    told: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: object,
) -> None:
    monkeypatch.chdir(str(tmp_path))
    hide("pyspark")
    assert main(["run", *line.split()]) == 1
    (said,) = capsys.readouterr().err.splitlines()
    assert said.endswith(f'pyspark, not installed here: pip install "whale-ray[spark]", or {told}')


def test_every_reported_extra_can_be_installed() -> None:
    """The installed metadata, which pip reads, knows the name."""
    assert set(EXTRAS) <= set(metadata("whale-ray").get_all("Provides-Extra") or [])
