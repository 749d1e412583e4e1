"""The optional packages of whale-ray: which features need them, and how to install them.

`pip install whale-ray` installs what `whale.run`, plain processes and Ray actors need. Everything
else is in an extra of pyproject.toml; code that uses one calls `require_extra` first, so that a
missing package gives a one-line error with the command that installs it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from types import MappingProxyType
from typing import Final

from .errors import ResourceError


@dataclass(frozen=True)
class Extra:
    """An extra that `whale-ray doctor` reports.

    Attributes:
        packages: the import names of packages by which it is recognized as installed.
        serves: the features that need it.
    """

    packages: tuple[str, ...]
    serves: str


EXTRAS: Final[Mapping[str, Extra]] = MappingProxyType(
    {
        "spark": Extra(("pyspark", "raydp"), "Spark DataFrames, and applications on real data"),
        "data": Extra(("fsspec", "pandas"), "Ray Datasets"),
        "dashboard": Extra(
            ("aiohttp", "grpc", "opencensus", "opentelemetry", "prometheus_client"),
            "Ray's dashboard and metrics, and `ray job submit`",
        ),
        "pandas": Extra(("pandas",), "results as pandas frames"),
        "s3": Extra(("fsspec", "s3fs"), "checkpoints in S3, and at other URLs that fsspec knows"),
        "delta": Extra(("deltalake",), "tables of Delta Lake"),
        "postgres": Extra(("psycopg",), "tables of Postgres"),
        "plots": Extra(("matplotlib",), "what --plots and `whale-ray simulate` draw"),
        "kafka": Extra(("confluent_kafka",), "sources and sinks of Kafka's topics"),
        "bench": Extra(
            ("zmq", "rocksdict"), "ZeroMQ and RocksDB, which `whale-ray bench` compares with"
        ),
        "prometheus": Extra(("prometheus_client",), "metrics that Prometheus reads"),
        "opentelemetry": Extra(
            ("opentelemetry.exporter.otlp.proto.http", "opentelemetry.exporter.otlp.proto.grpc"),
            "metrics sent by OTLP",
        ),
    }
)
"""By name. `rdma` is not included: pyverbs needs system libraries, see `doctor`."""


def install_command(extra: str) -> str:
    """Return the command that installs an extra."""
    return f'pip install "whale-ray[{extra}]"'


def lacking(extra: str) -> tuple[str, ...]:
    """Return the packages of an extra that are not installed; imports none but their parents."""
    return tuple(name for name in EXTRAS[extra].packages if not _is_installed(name))


def _is_installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # its parent is not
        return False


def explain_lack(extra: str, what: str) -> str:
    """Return a message with the missing packages and how to install them; "" if none are missing.

    Args:
        extra: a name in `EXTRAS`.
        what: the feature that needs it, the subject of the message.
    """
    packages = ", ".join(lacking(extra))
    if not packages:
        return ""
    return f"{what} needs {packages}, not installed here: {install_command(extra)}"


def require_extra(extra: str, what: str, otherwise: str = "") -> None:
    """Refuse a feature if its extra is not installed; `otherwise` names an alternative.

    Raises:
        ResourceError: the message of `explain_lack`, and `otherwise`.
    """
    lack = explain_lack(extra, what)
    if lack:
        msg = f"{lack}, or {otherwise}" if otherwise else lack
        raise ResourceError(msg)
