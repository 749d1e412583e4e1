"""The place in the user's program at which an operator was added."""

from __future__ import annotations

import sys
from pathlib import Path

_PACKAGE = "whale_ray"


def caller_location() -> str:
    """Return "file.py:12" of the innermost caller outside whale-ray, "cell:3" in a notebook."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_ours(frame.f_globals.get("__name__", "")):
        frame = frame.f_back
    path = Path(frame.f_code.co_filename)
    in_notebook = path.parent.name.startswith("ipykernel_") or path.name.startswith("<ipython")
    return f"{'cell' if in_notebook else path.name}:{frame.f_lineno}"


def _is_ours(module: str) -> bool:
    """Return whether a module is whale-ray's; the applications count as users' programs."""
    if module.startswith(f"{_PACKAGE}.applications"):
        return False
    return module == _PACKAGE or module.startswith(f"{_PACKAGE}.")
