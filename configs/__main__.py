"""Regenerate `default.yaml` beside this file: `python -m whale_ray.configs`."""

from __future__ import annotations

from pathlib import Path

from .describing import default_yaml

if __name__ == "__main__":
    Path(__file__).with_name("default.yaml").write_text(default_yaml(), encoding="utf-8")
