"""Files of runs that are kept as they were read: only what was replaced is read again."""

from __future__ import annotations

import pytest

from whale_ray.records.folders import replace_json
from whale_ray.ui import kept_files
from whale_ray.ui.kept_files import KeptFiles


def test_a_file_is_parsed_again_only_after_it_was_replaced(tmp_path):
    path = tmp_path / "now.json"
    replace_json(path, {"rows": 1})
    files = KeptFiles()
    first = files.read(path)
    assert first == {"rows": 1}
    assert files.read(path) is first
    replace_json(path, {"rows": 2})  # of the same size
    assert files.read(path) == {"rows": 2}


def test_a_file_that_is_gone_or_no_json_is_told_each_time(tmp_path):
    path = tmp_path / "now.json"
    replace_json(path, {})
    files = KeptFiles()
    files.read(path)
    path.write_text("{ half")
    for _ in range(2):
        with pytest.raises(ValueError):
            files.read(path)
    path.unlink()
    with pytest.raises(FileNotFoundError):
        files.read(path)


def test_no_more_files_are_kept_than_may_be(tmp_path, monkeypatch):
    monkeypatch.setattr(kept_files, "_FILES_MAX", 2)
    paths = [tmp_path / name for name in "abc"]
    files = KeptFiles()
    found = []
    for path in paths:
        replace_json(path, {"name": path.name})
        found.append(files.read(path))
    assert files.read(paths[2]) is found[2] and files.read(paths[1]) is found[1]
    assert files.read(paths[0]) == found[0] and files.read(paths[0]) is not found[0]
