"""JSON files of runs as they were read last: what was not replaced since is not parsed again.

Such a file is only replaced as a whole (`records.folders.replace_json`), so its content is the same
as long as its inode, its time and its size are.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from pathlib import Path
from typing import Any, Final

__all__ = ["KeptFiles"]

_FILES_MAX: Final = 256


class KeptFiles:
    """Reads JSON files; the `_FILES_MAX` that were asked for last are kept."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Path, tuple[tuple[int, int, int], Any]] = OrderedDict()

    def read(self, path: Path) -> Any:
        """Return the content of a file, which is shared: the caller must not change it.

        Raises:
            OSError: the file cannot be read.
            ValueError: it is no JSON.
        """
        kept = self._kept.pop(path, None)
        found = path.stat()  # before it is read: a later content is then read again, not kept
        version = found.st_ino, found.st_mtime_ns, found.st_size
        if kept is None or kept[0] != version:
            kept = version, json.loads(path.read_bytes())
        self._kept[path] = kept
        if len(self._kept) > _FILES_MAX:
            self._kept.popitem(last=False)
        return kept[1]
