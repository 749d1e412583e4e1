"""Reads kept functions without loading the modules of numba that their machine code came from.

numba keeps with a function the *environments* of those that were compiled into it: constants, and
the name of the module, which it imports for its globals. Only functions that Python interprets
look at globals, and numba's own are compiled. To import those modules takes a process longer than
to load all functions of a job; numba's compiler does it anyway.

`_rebuild_env` is the same in numba 0.61 to 0.68.
"""

from __future__ import annotations

import io
import pickle
import sys
from typing import Any, Final

from numba.core import environment

__all__ = ["unpickle_kept"]

_COMPILER: Final = "numba."


def unpickle_kept(code: bytes) -> Any:
    """Return what numba has kept of a function; raises what `pickle.loads` does."""
    return _KeptReader(io.BytesIO(code)).load()


class _KeptReader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Return what a name refers to: for `_rebuild_env`, what takes its place."""
        found = super().find_class(module, name)
        return _rebuilt if found is environment._rebuild_env else found


def _rebuilt(module: str, constants: tuple[object, ...], name: str) -> object:
    """Return an environment as `_rebuild_env` does, for a module of numba that is not loaded."""
    known = environment.lookup_environment(name)
    if known is not None or not module.startswith(_COMPILER) or module in sys.modules:
        return environment._rebuild_env(module, constants, name)
    bare = environment.Environment({"__name__": module})
    bare.consts[:] = constants
    bare.env_name = name
    environment.Environment._memo[name] = bare
    return bare
