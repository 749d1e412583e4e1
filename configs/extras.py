"""The optional packages of whale-ray: what they serve, and how to install them.

`pip install whale-ray` brings what `whale.run`, plain processes and Ray actors need. All else is in
an extra of pyproject.toml; what uses one calls `require_extra` first, so that a missing package is
one line with the command that installs it.
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
    """An extra that `whale-ray doctor` tells of.

    Attributes:
        packages: what it brings, by the names of import; those that tell whether it is installed.
        serves: what cannot be used without it.
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
        "plots": Extra(("matplotlib",), "what --plots and `whale-ray simulate` draw"),
        "bench": Extra(("zmq",), "ZeroMQ, which `whale-ray bench transport` compares with"),
    }
)
"""By name. `rdma` is not among them: pyverbs needs libraries of the system, see `doctor`."""


def install_command(extra: str) -> str:
    """Return the command that installs an extra."""
    return f'pip install "whale-ray[{extra}]"'


def lacking(extra: str) -> tuple[str, ...]:
    """Return the packages of an extra that cannot be imported here; none of them is imported."""
    return tuple(name for name in EXTRAS[extra].packages if find_spec(name) is None)


def explain_lack(extra: str, what: str) -> str:
    """Return what is missing, for what, and how to install it; "" if nothing is missing.

    Args:
        extra: a name in `EXTRAS`.
        what: what needs it, the subject of the message.
    """
    packages = ", ".join(lacking(extra))
    if not packages:
        return ""
    return f"{what} needs {packages}, not installed here: {install_command(extra)}"


def require_extra(extra: str, what: str, otherwise: str = "") -> None:
    """Refuse `what` if its extra is not installed; `otherwise` says what else can be done.

    Raises:
        ResourceError: the message of `explain_lack`, and `otherwise`.
    """
    lack = explain_lack(extra, what)
    if lack:
        msg = f"{lack}, or {otherwise}" if otherwise else lack
        raise ResourceError(msg)
