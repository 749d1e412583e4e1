"""An archive of Spark's loaded classes, which later Java processes map into memory (JEP 310).

Finding, verifying and linking some 13,000 classes takes half of the processor time of a start. The
Java processes of a first session record which ones they load, and `make_archive` turns these lists
into an archive for all later sessions. Java checks whether the archive fits its version and the
jars, and ignores it otherwise.

The archive contains code, so it is stored in a folder in which only this user can write.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from ..ray_bridge.folders import new_folder
from ..transport.compiled_folder import folder_of_own
from .java import JAVA_OPTION_KEYS, QUICK_START_OPTIONS, class_places, find_java

__all__ = ["is_recorded", "make_archive", "with_archive"]

_TIMEOUT_S = 300

_recorded: Path | None = None
"""The folder with a list of classes for each Java process of Spark."""


def with_archive(values: Mapping[str, str]) -> dict[str, str]:
    """Return Spark's settings with Java options that use the archive, or record its classes."""
    global _recorded  # noqa: PLW0603  # a process has one driver
    _recorded, archive = None, _archive()
    if archive is None:
        return dict(values)
    if archive.exists():
        # Without the log option, Java would print a warning if the archive does not fit.
        options = f"-XX:SharedArchiveFile={archive} -Xlog:cds=off"
    else:
        _recorded = Path(new_folder("classes"))
        options = f"-XX:DumpLoadedClassList={_recorded}/%p"
    return {**values, **{key: f"{values[key]} {options}" for key in JAVA_OPTION_KEYS}}


def is_recorded() -> bool:
    """Return whether this process has recorded the classes of a session, to make an archive."""
    return _recorded is not None and any(_recorded.iterdir())


def make_archive() -> bool:
    """Make the archive of the recorded classes; return whether it was made.

    It takes 10 to 30 s on one processor, and 160 MB in the user's cache folder. An earlier archive
    of the same installation is replaced.
    """
    archive = _archive()
    if _recorded is None or archive is None:
        return False
    # The last line may be incomplete, if Java was killed while it wrote.
    lists = [path.read_text("utf-8").rpartition("\n")[0] for path in _recorded.iterdir()]
    classes = _recorded / "all"
    classes.write_text("\n".join(lists) + "\n", "utf-8")
    unfinished = archive.with_suffix(f".{os.getpid()}")
    command = [
        str(find_java().home / "bin" / "java"),
        *QUICK_START_OPTIONS,
        "-Xshare:dump",
        f"-XX:SharedClassListFile={classes}",
        f"-XX:SharedArchiveFile={unfinished}",
        "-cp",
        ":".join(class_places()),
    ]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_TIMEOUT_S, check=False)
        if done.returncode or not unfinished.exists():
            return False
        with unfinished.open("rb") as file:  # a file truncated by a power cut would crash Java
            os.fsync(file.fileno())
        for earlier in archive.parent.glob(f"{archive.name.rpartition('-')[0]}-*.jsa"):
            earlier.unlink()
        unfinished.replace(archive)
    except (OSError, subprocess.TimeoutExpired):  # the disk is full, or the machine too busy
        return False
    finally:
        with suppress(OSError):
            unfinished.unlink()
    return True


def _archive() -> Path | None:
    """Return the path of this installation's archive; None if there is no folder for it."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    if not home.is_absolute():
        return None
    with suppress(OSError):
        home.mkdir(parents=True, exist_ok=True)
    folder = folder_of_own(home)
    if folder is None:
        return None
    places = [str(find_java().home), *class_places()]
    jars = [Path(place.removesuffix("/*")) for place in places]
    changed = [str(path.stat().st_mtime_ns) for path in jars]
    return folder / f"spark-{_digest(places)}-{_digest(changed)}.jsa"


def _digest(words: list[str]) -> str:
    return hashlib.sha256("\n".join(words).encode()).hexdigest()[:16]
