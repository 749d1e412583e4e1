"""The documents as text: README.md, ARCHITECTURE.md and the pages, their blocks and code spans.

Pages are read with what is generated into them, so that it is checked as well.
"""

from __future__ import annotations

import importlib.util
import inspect
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import whale_ray as whale

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs" / "pages"

FENCE = re.compile(
    r"(?:^<!-- not run: (?P<reason>[^\n]+) -->\n)?^```(?P<language>\w+)\n(?P<body>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """A fenced block: what it is said to be, its text, the line before it, why it is not run."""

    language: str
    body: str
    line: int
    reason: str | None


def _load(name: str) -> Any:
    """Return a module of docs/, which is no package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


hooks = _load("hooks")
pictures = _load("pictures")

README = (ROOT / "README.md").read_text(encoding="utf-8")
ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
SITE = {
    path.relative_to(PAGES).as_posix(): path.read_text(encoding="utf-8")
    for path in sorted(PAGES.rglob("*.md"))
}
"""Every page as it is written, by its path below `docs/pages`."""

DOCUMENTS = {
    "README.md": README,
    "ARCHITECTURE.md": ARCHITECTURE,
    **{f"docs/pages/{name}": text for name, text in SITE.items()},
}
"""Everything that is written by hand."""


def page(name: str) -> str:
    """Return a page with what is generated into it."""
    return hooks.expand(SITE[name], name)


def blocks(text: str, language: str | None = None) -> list[Block]:
    """Return the fenced blocks of a text, those of a language or all."""
    found = [
        Block(
            language=match["language"],
            body=match["body"],
            line=text.count("\n", 0, match.start("body")),
            reason=match["reason"],
        )
        for match in FENCE.finditer(text)
    ]
    return [block for block in found if language in (None, block.language)]


def spans(text: str) -> list[str]:
    """Return the code spans outside of fenced blocks."""
    return re.findall(r"`([^`\n]+)`", FENCE.sub("", text))


def section(title: str, text: str) -> str:
    """Return the text below a heading, up to the next one of its level or above."""
    found = re.search(rf"^(#+) {re.escape(title)}\n", text, re.MULTILINE)
    assert found, f"there is no section {title!r}"
    rest = text[found.end() :]
    end = re.search(rf"^#{{1,{len(found[1])}}} ", rest, re.MULTILINE)
    return rest[: end.start()] if end else rest


def table_rows(text: str) -> list[list[str]]:
    """Return the cells of a text's first table, without its head."""
    found = re.search(r"(?:^\|.*\n)+", text, re.MULTILINE)
    assert found, "there is no table"
    return [
        [cell.strip() for cell in line.strip("|").split("|")] for line in found[0].splitlines()[2:]
    ]


def resolve(dotted: str) -> Any:
    """Return the object of a dotted name that begins with whale or whale_ray."""
    first, *rest = dotted.split(".")
    assert first in ("whale", "whale_ray")
    found: Any = whale
    for depth, name in enumerate(rest):
        if not hasattr(found, name) and inspect.ismodule(found):
            importlib.import_module(".".join(["whale_ray", *rest[: depth + 1]]))
        found = getattr(found, name)
    return found
