"""What the pages take from the code and from other documents when the site is built.

A page asks for it by a line `<!-- generated: NAME -->`. mkdocs calls `on_page_markdown` for every
page. Nothing here needs mkdocs, so tests call `expand` as well.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGES = Path(__file__).parent / "pages"
NAMESPACES = ("errors", "functions", "sinks", "sources", "spark", "state", "testing", "transports")
"""Modules of public names, each shown on a page of the reference."""

MARKER = re.compile(r"^<!-- generated: ([\w./-]+) -->$", re.MULTILINE)

INCLUDED = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "internals/architecture.md",
    "CHANGELOG.md": "changelog.md",
}
"""Documents of the project's root, and the pages that show them."""


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Return a page's text with its generated parts (called by mkdocs)."""
    return expand(markdown, page.file.src_uri)


def on_post_build(*, config: Any, **_: Any) -> None:
    """Check that the reference lacks no public name (called by mkdocs).

    A function that has the name of its module, say, is left out without a warning.

    Raises:
        ValueError: it lacks some; the message names them.
    """
    import whale_ray

    missing = []
    for namespace in NAMESPACES:
        page = Path(config.site_dir, "reference", f"{namespace}.html").read_text(encoding="utf-8")
        module = importlib.import_module(f"{whale_ray.__name__}.{namespace}")
        missing += [
            f"{namespace}.{name}"
            for name in module.__all__
            if not re.search(rf'<h[1-6] id="whale_ray\.[\w.]*\b{name}"', page)
        ]
    if missing:
        msg = f"the reference lacks {', '.join(missing)}"
        raise ValueError(msg)


def expand(markdown: str, page: str) -> str:
    """Return a page's text with its generated parts.

    Args:
        markdown: the text as it is written.
        page: the page's path below `pages/`.

    Raises:
        KeyError: a marker names nothing that is known here.
        OSError: it names a program that is not there.
    """

    def generated(found: re.Match[str]) -> str:
        asked = found[1]
        return _program(asked) if asked.startswith("examples/") else GENERATED[asked](page)

    return MARKER.sub(generated, markdown)


def _program(path: str) -> str:
    """Return a file of examples/ as a block of code."""
    language = "yaml" if path.endswith(".yaml") else "python"
    return f"`{path}`:\n\n```{language}\n{(ROOT / path).read_text(encoding='utf-8')}```"


def _included(document: str) -> Callable[[str], str]:
    """Return what gives a document without its title, its links turned towards pages."""

    def text_for(page: str) -> str:
        text = (ROOT / document).read_text(encoding="utf-8").partition("\n")[2]
        return re.sub(r"(?<=\]\()[^)\s]+(?=\))", lambda found: _link(found[0], page), text)

    return text_for


def _link(target: str, page: str) -> str:
    """Return a link of a document in the root as a link of a page."""
    path, hash_sign, anchor = target.partition("#")
    if "://" in target or not path:
        return target
    path = INCLUDED.get(path, path.removeprefix("docs/pages/"))
    return os.path.relpath(path, Path(page).parent) + hash_sign + anchor


def _spark_tables(part: int) -> Callable[[str], str]:
    """Return what gives one of the two tables for people who know PySpark."""

    def text_for(_page: str) -> str:
        from whale_ray.operators.expressions.spark_names import spark_translation_table

        return spark_translation_table().rstrip("\n").split("\n\n")[part]

    return text_for


def _settings(_page: str) -> str:
    """Return a table of every setting for each section."""
    from whale_ray.configs.describing import describe_settings
    from whale_ray.configs.settings import SECTIONS

    descriptions = describe_settings()
    lines: list[str] = []
    for section, section_type in SECTIONS.items():
        summary = (section_type.__doc__ or "").partition("\n")[0]
        lines += ["", f"## {section}", "", summary, ""]
        lines += ["| setting | default | allowed | meaning |", "|---|---|---|---|"]
        for one in descriptions:
            if one.path.startswith(f"{section}."):
                symbol = f" ({one.symbol} in the papers)" if one.symbol else ""
                value = str(one.default)
                value = value.lower() if isinstance(one.default, bool) else value
                default = f"`{value}`" if value else "empty"
                lines.append(f"| `{one.path}` | {default} | {one.allowed} | {one.why}{symbol} |")
    return "\n".join(lines)


def _metrics(_page: str) -> str:
    """Return a table of every metric for each group."""
    from whale_ray.metrics.export.catalogue import CATALOGUE
    from whale_ray.metrics.export.metric import INSTANCE_LABEL

    lines: list[str] = []
    for group in CATALOGUE:
        labels = [f"`{name}`" for name in group.labels if name != INSTANCE_LABEL]
        lines += ["", f"### {group.title}", ""]
        lines += [f"Labels: {', '.join(labels)}.", ""] if labels else []
        lines += ["| metric | kind | meaning |", "|---|---|---|"]
        for one in group.metrics:
            own = f" By `{one.by}`." if one.by else ""
            lines.append(f"| `{one.name}` | {one.kind.value} | {one.meaning}{own} |")
    return "\n".join(lines)


def _picture(name: str) -> Callable[[str], str]:
    """Return what gives a drawing as SVG within the page, so that it has the theme's colours."""

    def text_for(_page: str) -> str:
        return f'<div class="picture">{getattr(_pictures(), name)()}</div>'

    return text_for


def _pictures() -> Any:
    """Return the module beside this one; mkdocs loads this file by its path, not as a package."""
    path = Path(__file__).with_name("pictures.py")
    spec = importlib.util.spec_from_file_location("pictures", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _optimize_output(_page: str) -> str:
    """Return what `whale-ray optimize` printed while the pictures of the page were made."""
    told = (PAGES / "operations" / "pictures" / "optimize.txt").read_text(encoding="utf-8")
    return f"```text\n{told.rstrip()}\n```"


GENERATED: dict[str, Callable[[str], str]] = {
    **{document: _included(document) for document in INCLUDED},
    "spark-names": _spark_tables(0),
    "spark-differences": _spark_tables(1),
    "settings": _settings,
    "metrics": _metrics,
    "tuning-optimize": _optimize_output,
    "picture-of-packages": _picture("packages"),
    "picture-of-a-batch": _picture("way_of_a_batch"),
    "picture-of-one-to-many": _picture("one_to_many"),
}
"""What can be asked for, by name: each is given the page and returns Markdown or HTML."""
