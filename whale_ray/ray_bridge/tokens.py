"""The token of a Ray that is started here, for users without a home.

Ray 2.60 protects every new cluster with a token, which it writes into the user's home; without a
home it does not start.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Any

__all__ = ["provide_token"]


def provide_token() -> None:
    """Ask for a token as Ray does when it starts, so that processes started before it do, too.

    Where Ray has none and could not keep a new one, there is one in the environment: only this
    process and those that it starts can then use the Ray.
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
    except (OSError, RuntimeError):  # RuntimeError: nobody knows the home of this user
        has_place = False
    if not has_place:
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
