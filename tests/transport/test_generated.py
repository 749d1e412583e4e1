"""Functions whose text is made while a job runs: compiled once, kept in a folder of this user's."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
from llvmlite.binding import FeatureMap
from numba.core.errors import TypingError

from whale_ray.transport import generated

TEXT = """
K0 = np.int64(3)

def doubled(value):
    return value + value

def loop(values):
    total = K0
    for i in range(values.size):
        total += doubled(values[i])
    return total
"""
_INT64S = numba.types.Array(numba.int64, 1, "C", readonly=True)


def _total(text: str = TEXT) -> int:
    """Return what the loop computes in a process that has loaded none."""
    generated._loaded.cache_clear()
    loop = generated.compile_text(text, "loop", (_INT64S,), {"np": np}, ("doubled",))
    return int(loop(np.arange(4, dtype=np.int64)))


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder that files are kept in; nothing is there yet."""
    monkeypatch.delenv(generated.FOLDER_VARIABLE, raising=False)
    monkeypatch.delenv(generated.NOT_KEPT_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(generated, "_told", set())
    return tmp_path / f"whale-ray-compiled-{os.geteuid()}" / "loops"


def test_a_text_is_kept_with_what_it_was_compiled_to(kept: Path) -> None:
    assert not generated.is_kept(TEXT)
    assert _total() == 15
    assert generated.is_kept(TEXT)
    assert [path.read_text() for path in kept.glob("*.py")] == [TEXT]
    assert not generated.is_kept(TEXT.replace("K0 = np.int64(3)", "K0 = np.int64(4)"))


def test_what_nobody_has_used_for_longest_is_removed(
    kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generated, "_KEPT_MAX", 2)
    texts = [TEXT.replace("K0 = np.int64(3)", f"K0 = np.int64({k})") for k in range(5)]
    for number, text in enumerate(texts[:3]):
        assert _total(text) == 12 + number
    assert all(map(generated.is_kept, texts[:3])), "files of this hour stay"
    (kept / "tmp-of-a-killed-process").touch()
    for path in kept.iterdir():
        os.utime(path, (0, 0))
    assert _total(texts[1]) == 13  # used again
    assert _total(texts[3]) == 15
    assert [generated.is_kept(text) for text in texts] == [False, True, False, True, False]
    assert {path.suffix for path in kept.iterdir()} == {".py", ""}
    assert len([*kept.glob("*.py")]) == 2
    compiled = {path.name.partition(".")[0] for path in (kept / "__pycache__").iterdir()}
    assert compiled - {"whale-ray-compiling"} == {path.stem for path in kept.glob("*.py")}
    assert _total(texts[0]) == 12


def test_a_process_loads_a_loop_once_unless_it_calls_functions_of_a_user(kept: Path) -> None:
    def compiled(text: str, signature: object = _INT64S, **known: object) -> object:
        known["np"] = np
        return generated.compile_text(text, "loop", (signature,), known, ("doubled",))

    first = compiled(TEXT)
    assert compiled(TEXT) is first
    assert compiled(TEXT.replace("int64(3)", "int64(4)")) is not first
    assert compiled(TEXT, numba.int32[::1]) is not first
    users = numba.njit(lambda value: value)
    assert compiled(TEXT, users=users) is not compiled(TEXT, users=users)


def test_what_is_returned_is_compiled_already() -> None:
    """Whoever asks does so before the first row, or in another thread than that of the rows."""
    loop = generated.compile_text(TEXT, "loop", (_INT64S,), {"np": np}, ("doubled",), keep=False)
    assert loop.signatures == [(_INT64S,)]


def test_what_numba_refuses_is_refused_at_once() -> None:
    text = "def loop(values):\n    return values.no_such_attribute\n"
    with pytest.raises(TypingError, match="no_such_attribute"):
        generated.compile_text(text, "loop", (_INT64S,), {}, (), keep=False)


def test_another_process_loads_what_one_has_compiled(kept: Path) -> None:
    _total()
    script = (
        "import numpy as np, numba\n"
        "from whale_ray.transport import generated\n"
        f"loop = generated.compile_text({TEXT!r}, 'loop',"
        " (numba.types.Array(numba.int64, 1, 'C', readonly=True),), {'np': np}, ('doubled',))\n"
        "print(loop(np.arange(4)), sum(loop.stats.cache_hits.values()))\n"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["15", "1"]


@pytest.mark.parametrize(
    ("of", "name", "other"),
    [
        (generated.platform, "python_version", lambda: "3.0.0"),
        (numba, "__version__", "0.0.0"),
        (generated.llvmlite, "__version__", "0.0.0"),
        (generated.llvmlite.binding, "get_host_cpu_name", lambda: "another"),
        (generated.llvmlite.binding, "get_host_cpu_features", lambda: FeatureMap(avx=False)),
    ],
    ids=["Python", "numba", "llvmlite", "processor", "its instructions"],
)
def test_what_another_machine_or_version_has_compiled_is_not_loaded(
    kept: Path, monkeypatch: pytest.MonkeyPatch, of: Any, name: str, other: object
) -> None:
    """Such as a home that machines share: the files of each have names of their own."""
    _total()
    assert generated.is_kept(TEXT)
    monkeypatch.setattr(of, name, other)
    monkeypatch.setattr(generated, "_machine", generated._machine.__wrapped__)
    assert not generated.is_kept(TEXT)


def test_a_file_with_another_content_is_replaced_and_never_executed(kept: Path) -> None:
    _total()
    (path,) = kept.glob("*.py")
    path.write_text("raise SystemExit('a stranger')")
    assert _total() == 15
    assert path.read_text() == TEXT


@pytest.mark.parametrize("length", [None, -20])
def test_what_was_compiled_and_cannot_be_read_is_compiled_again(
    kept: Path, length: int | None
) -> None:
    _total()
    found = list((kept / "__pycache__").glob("*.nb?"))
    assert len(found) == 2  # the index and the machine code
    for path in found:
        path.write_bytes(b"of another version" if length is None else path.read_bytes()[:length])
    assert _total() == 15


@pytest.mark.parametrize("place", ["loops", "loops/__pycache__"])
def test_a_file_in_place_of_a_folder_is_no_hindrance(
    kept: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setenv("TMPDIR", str(kept.parent))
    path = kept.parent / place
    _total()
    shutil.rmtree(path)
    path.write_text("a stranger")
    assert not generated.is_kept(TEXT)
    assert _total() == 15
    assert path.read_text() == "a stranger"


_FILES_THAT_DO_NOT_GROW = """
import resource, numba, numpy as np
from whale_ray.transport import generated
resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))
types = (numba.types.Array(numba.int64, 1, "C", readonly=True),)
for last in (4, 5):
    text = {text!r}.replace("int64(3)", f"int64({{last}})")
    print(generated.compile_text(text, "loop", types, {{"np": np}}, ("doubled",))(np.arange(4)))
"""


def test_a_full_disk_is_no_hindrance_and_said_once(kept: Path) -> None:
    script = _FILES_THAT_DO_NOT_GROW.format(text=TEXT)
    command = [sys.executable, "-c", script]
    ran = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (ran.returncode, ran.stdout.split()) == (0, ["16", "17"]), ran.stderr
    (said,) = [line for line in ran.stderr.splitlines() if "cannot be kept" in line]
    assert f"{kept}/__pycache__: File too large" in said
    assert not list((kept / "__pycache__").glob("*.nbc"))


def test_without_a_folder_it_is_compiled_all_the_same_and_said_once(
    kept: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    kept.parent.mkdir()
    kept.parent.chmod(0o777)  # others could put files there
    monkeypatch.setenv("TMPDIR", str(kept.parents[1]))
    with caplog.at_level(logging.WARNING):
        assert (_total(), _total()) == (15, 15)
    (record,) = caplog.records
    assert "compiled loops are not kept" in record.getMessage()
    assert generated.FOLDER_VARIABLE in record.getMessage()


def test_a_folder_that_became_read_only_is_no_hindrance(
    kept: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    _total()

    def refuse(*arguments: object, **options: object) -> object:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("whale_ray.transport.generated.tempfile.NamedTemporaryFile", refuse)
    with caplog.at_level(logging.WARNING):
        assert _total(TEXT.replace("int64(3)", "int64(5)")) == 17
    assert "Permission denied" in caplog.records[0].getMessage()
