"""Whether this machine can make hosts out of network namespaces, found out by trying.

Everything is tried in a namespace without a name, which ends with the process that tries, so that
nothing is left and nothing outside is touched.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from functools import cache

from .commands import find

_TIMEOUT_S = 20
_TOOLS = {"ip": "iproute2", "tc": "iproute2", "unshare": "util-linux", "setpriv": "util-linux"}
_TRIALS = (
    ("network namespaces", "true"),
    ("bridges", "{ip} link add bridge type bridge"),
    ("veth pairs", "{ip} link add one type veth peer name two"),
    ("enslaving to a bridge", "{ip} link set one master bridge up"),
    ("tbf, which limits rates", "{tc} qdisc add dev two root tbf rate 8mbit burst 9kb limit 9kb"),
    ("netem, which delays", "{tc} qdisc replace dev one root netem delay 1ms"),
)
_DELAYS = len(_TRIALS) - 1
"""The trial that may fail: hosts without delays are hosts still."""


@dataclass(frozen=True)
class Capability:
    """What this machine can do.

    Attributes:
        lack: why there can be no hosts, empty if there can.
        delays: links can be given a delay.
    """

    lack: str
    delays: bool = False


@cache
def capability() -> Capability:
    """Return what this machine can do; looked up once per process, in a few milliseconds."""
    if os.geteuid() != 0:
        return Capability(f"network namespaces need root, and this is user {os.geteuid()}")
    for tool, package in _TOOLS.items():
        if find(tool) is None:
            return Capability(f"`{tool}` is missing; install {package} (apt-get install {package})")
    try:
        done = subprocess.run(
            [find("unshare") or "unshare", "--net", "sh", "-c", _script()],
            capture_output=True,
            text=True,
            check=False,
            timeout=_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Capability(f"network namespaces cannot be tried: {error}")
    passed = done.stdout.count("\n")
    if passed < _DELAYS:
        told = " ".join(done.stderr.split())
        return Capability(f"no {_TRIALS[passed][0]}: {told or f'exit code {done.returncode}'}")
    return Capability("", delays=passed > _DELAYS)


def _script() -> str:
    """Return a shell script that prints a line after every trial that succeeds, up to a failure."""
    tools = {tool: find(tool) for tool in _TOOLS}
    return " && echo && ".join([command.format(**tools) for _, command in _TRIALS] + ["true"])
