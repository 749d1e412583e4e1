"""Calls of iproute2's `ip` and `tc`: the only way in which hosts are made and changed."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable

from ...configs.errors import ResourceError

_SYSTEM_FOLDERS = ("/usr/local/sbin", "/usr/sbin", "/sbin")
"""Where iproute2 may live although a user's PATH does not name it."""
_TIMEOUT_S = 60


def find(tool: str) -> str | None:
    """Return the path of a command, None if it is not installed."""
    path = os.pathsep.join([os.environ.get("PATH", ""), *_SYSTEM_FOLDERS])
    return shutil.which(tool, path=path)


def ip(*arguments: str) -> str:
    """Run one `ip` command and return what it printed; raises ResourceError if it fails."""
    return _run("ip", arguments, "")


def ip_batch(namespace: str | None, commands: Iterable[str]) -> None:
    """Run `ip` commands in a namespace (None: this one), up to the first that fails.

    Raises:
        ResourceError: one failed; the message holds what `ip` said of it.
    """
    where = () if namespace is None else ("-n", namespace)
    _run("ip", (*where, "-batch", "-"), "".join(f"{line}\n" for line in commands))


def tc(namespace: str, *arguments: str) -> None:
    """Run one `tc` command in a namespace; raises ResourceError if it fails."""
    _run("tc", ("-n", namespace, *arguments), "")


def _run(tool: str, arguments: Iterable[str], given: str) -> str:
    command = [find(tool) or tool, *arguments]
    try:
        done = subprocess.run(
            command,
            input=given,
            capture_output=True,
            text=True,
            check=False,
            timeout=_TIMEOUT_S,
            process_group=0,  # Ctrl-C is for the owner, which then takes away what there is
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        msg = f"cannot run {tool}: {error}"
        raise ResourceError(msg) from error
    if done.returncode != 0:
        told = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        msg = f"`{tool} {' '.join(arguments)}` failed: {told}"
        raise ResourceError(msg)
    return done.stdout
