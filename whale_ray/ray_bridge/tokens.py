"""The authentication token of a new Ray cluster, for users without a home directory.

Ray 2.60 protects every new cluster with a token, which it writes into the user's home directory;
without one it does not start.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Any

__all__ = ["provide_token"]


def provide_token() -> None:
    """Enable Ray's token now, so that processes started before Ray use it, too.

    If Ray has no token and cannot store a new one, set one in the environment: then only this
    process and its children can use the cluster.
    """
    from ray import _raylet
    from ray._private.authentication import authentication_token_setup

    loader: Any = _raylet
    setup: Any = authentication_token_setup
    if "RAY_AUTH_MODE" not in os.environ:
        setup._enable_token_auth()
    if os.environ.get("RAY_AUTH_MODE", "token").lower() != "token":
        return
    if loader.AuthenticationTokenLoader.instance().has_token(ignore_auth_mode=True):
        return
    try:
        folder = Path.home() / ".ray"
        folder.mkdir(parents=True, exist_ok=True)
        has_place = os.access(folder, os.W_OK)
    except (OSError, RuntimeError):  # RuntimeError: this user has no home directory
        has_place = False
    if not has_place:
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
