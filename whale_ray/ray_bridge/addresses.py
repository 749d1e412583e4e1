"""Find the address of a running Ray cluster, and check that it answers.

Ray itself tries an unreachable address for five minutes and then ends the process; connecting to
the port first detects this at once.
"""

from __future__ import annotations

import os
import socket
from typing import Any

from ..configs.errors import ResourceError, UsageError

_ADDRESS_VARIABLE = "RAY_ADDRESS"
_ANSWER_TIMEOUT_S = 5.0


def resolve_address(address: str | None) -> str | None:
    """Return `host:port` of the cluster to join, or None to start a new one; see `session`.

    Raises:
        UsageError: the address is not `host:port`.
        ResourceError: nothing answers there, or "auto" finds no Ray, or several.
    """
    source = ""
    if address in (None, "auto") and os.environ.get(_ADDRESS_VARIABLE):
        address = os.environ[_ADDRESS_VARIABLE]
        source = f" (from {_ADDRESS_VARIABLE})"
    if address == "local":
        return None
    if address is None or address == "auto":
        return _found_here(must_find=address == "auto")
    host, port = _split(address, source)
    reason = _silence(host, port)
    if reason:
        msg = (
            f"no Ray answers at {address}{source}: {reason}; start one with `ray start --head`, "
            "correct the address, or leave it out to start a new Ray"
        )
        raise ResourceError(msg)
    if _is_here(host):
        _enable_token()
    return f"{_numeric(host)}:{port}"


def _found_here(*, must_find: bool) -> str | None:
    """Return the address of the cluster that runs on this machine, or None."""
    recorded, running = _recorded_and_running()
    if recorded is not None and not _silence(*_split(recorded, "")):
        _enable_token()
        return recorded
    if not must_find:
        return None
    if not running:
        msg = (
            "no Ray runs on this machine; start one with `ray start --head`, "
            "or leave out the address and a job starts its own"
        )
        raise ResourceError(msg)
    if len(running) > 1:
        addresses = ", ".join(running)
        msg = f"several Rays run on this machine; pass the address of one of them: {addresses}"
        raise ResourceError(msg)
    _enable_token()
    return running[0]


def _recorded_and_running() -> tuple[str | None, list[str]]:
    """Return the address that `ray start` recorded, and those of all running Ray processes."""
    from ray._private import services

    finder: Any = services
    recorded = finder.find_bootstrap_address(None)
    return recorded, sorted(finder.find_gcs_addresses())


def _split(address: str, source: str) -> tuple[str, int]:
    if "://" in address:
        msg = (
            f"the address {address!r}{source} is Ray Client's, through which no memory is shared; "
            "submit the script with `ray job submit`, or pass host:port on a node of the cluster"
        )
        raise UsageError(msg)
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65_536:
        msg = f"the address {address!r}{source} is none; write 'auto', 'local' or 'host:port'"
        raise UsageError(msg)
    return host.strip("[]"), int(port)


def _silence(host: str, port: int) -> str:
    """Return why a port cannot be connected to; empty if it can."""
    try:
        with socket.create_connection((host, port), timeout=_ANSWER_TIMEOUT_S):
            return ""
    except socket.gaierror:
        return f"the host {host!r} is not known"
    except OSError as error:
        return (error.strerror or str(error)).lower()


def _numeric(host: str) -> str:
    """Return Ray's address of a host, which is never the loopback address."""
    if _is_loopback(host):
        from ray.util import get_node_ip_address

        return str(get_node_ip_address())
    return host


def _is_loopback(host: str) -> bool:
    return host in {"localhost", "::1"} or host.startswith("127.")


def _is_here(host: str) -> bool:
    """Return whether a host is this machine; only then is its token sent without a request."""
    if _is_loopback(host):
        return True
    from ray.util import get_node_ip_address

    return host == get_node_ip_address()


def _enable_token() -> None:
    """Use this user's token for a cluster of this machine, unless RAY_AUTH_MODE is set.

    Ray 2.60 protects every new cluster with a token, and sends it by itself only for "auto".
    """
    from ray._private.authentication import authentication_token_setup

    setup: Any = authentication_token_setup
    setup.maybe_enable_token_auth_if_token_available(warn_if_disabled=False)
