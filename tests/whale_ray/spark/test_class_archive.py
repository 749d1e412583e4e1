"""The archive of Spark's classes, made and used by a real Java; Spark itself is not started."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from whale_ray.spark import class_archive
from whale_ray.spark.class_archive import is_recorded, make_archive, with_archive
from whale_ray.spark.java import DRIVER_OPTION_KEY, JAVA_OPTION_KEYS, class_places, find_java

VALUES = dict.fromkeys(JAVA_OPTION_KEYS, "-Xmx64m")
OF_SPARK = "org.apache.spark.launcher.Main"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the test a cache folder of its own."""
    monkeypatch.setattr(class_archive, "_recorded", None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def run_java(options: str, *arguments: str) -> str:
    """Run a class of Spark's with the options of a driver; return all that it says."""
    java = find_java().home / "bin" / "java"
    command = [java, *options.split(), *arguments, "-cp", ":".join(class_places()), OF_SPARK]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


@pytest.mark.long
def test_a_first_session_records_later_ones_map_its_classes_and_what_is_no_archive_is_not_used(
    cache: Path,
) -> None:
    first = with_archive(VALUES)
    assert not is_recorded()
    said = run_java(first[DRIVER_OPTION_KEY])
    assert "Not enough arguments: missing class name" in said
    assert is_recorded()
    assert make_archive()
    later = with_archive(VALUES)
    assert not is_recorded()
    for key in JAVA_OPTION_KEYS:
        assert later[key].startswith("-Xmx64m -XX:SharedArchiveFile=")
    assert run_java(later[DRIVER_OPTION_KEY]) == said
    loaded = run_java(later[DRIVER_OPTION_KEY], "-Xlog:class+load")
    assert f"{OF_SPARK} source: shared objects file" in loaded
    (archive,) = cache.glob("*/*")
    archive.unlink()
    archive.write_bytes(b"no archive" * 1000)
    assert run_java(with_archive(VALUES)[DRIVER_OPTION_KEY]) == said, "Java says nothing of it"


@pytest.mark.long
def test_a_list_that_was_cut_off_is_used_as_far_as_it_goes() -> None:
    options = with_archive(VALUES)[DRIVER_OPTION_KEY]
    run_java(options)
    folder = Path(options.rpartition("=")[2]).parent
    (folder / "killed").write_text("java/lang/Integer id: 7\norg/apache/spark/Spa")
    assert make_archive()


@pytest.mark.long
def test_other_jars_have_an_archive_of_their_own_in_the_place_of_the_old_one(
    cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    jars = tmp_path / "jars"
    jars.mkdir()
    monkeypatch.setattr(class_archive, "class_places", lambda: [*class_places(), f"{jars}/*"])
    names = []
    for added in ("one", "two"):
        run_java(with_archive(VALUES)[DRIVER_OPTION_KEY])
        assert make_archive()
        names += [path.name for path in cache.glob("*/*.jsa")]
        (jars / added).touch()
    assert len(set(names)) == len(names) == 2


def test_nothing_is_recorded_where_nothing_can_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert with_archive(VALUES) == VALUES
    assert not is_recorded()
    assert not make_archive()


def test_an_archive_that_cannot_be_written_is_reported(cache: Path) -> None:
    run_java(with_archive(VALUES)[DRIVER_OPTION_KEY])
    (folder,) = cache.iterdir()
    folder.rmdir()
    folder.touch()
    assert not make_archive()
