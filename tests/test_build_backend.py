"""What builds wheels: where functions cannot be compiled, the wheel is built without them."""

from __future__ import annotations

import importlib
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
NAME = "whale_ray-0-py3-none-any.whl"


def test_a_wheel_is_built_where_functions_cannot_be_compiled(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As on an older processor, or where the build has no module `wheel`."""
    monkeypatch.syspath_prepend(ROOT / ".ci")
    backend: Any = importlib.import_module("build_backend")
    refused: list[str] = []

    def build(directory: str, *_others: object) -> str:
        Path(directory, NAME).write_bytes(b"as it was")
        return NAME

    def run(words: list[str], *, check: bool, **_options: object) -> None:
        if words[-1] == "--common-processor":
            refused.append(words[-2])
            raise subprocess.CalledProcessError(2, words)
        assert words[2:4] == ["wheel", "unpack"]
        Path(words[words.index("--dest") + 1], "whale_ray-0").mkdir(parents=True)

    monkeypatch.setattr(backend.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(backend.page, "is_built", lambda: True)
    monkeypatch.setattr(backend.build_meta, "build_wheel", build)
    monkeypatch.setattr(backend.subprocess, "run", run)
    assert backend.build_wheel(str(tmp_path)) == NAME
    assert refused == ["compile"]
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"as it was"]
    assert "carries no compiled functions: -m whale_ray.cli.main" in capsys.readouterr().err
