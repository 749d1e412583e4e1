"""Docstrings as the API reference shows them, which is Markdown.

The sources write an example behind `::` at the end of a line, as reStructuredText has it, or as a
dialogue with `>>>`. mkdocs-material loads this as an extension of griffe, which reads the sources
without importing them.
"""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

_LITERAL_BLOCK = re.compile(r"^(?P<lead>.*)::\n(?P<body>(?:\n|[ ]{4}.*(?:\n|\Z))+)", re.MULTILINE)
_DIALOGUE = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)
_EXAMPLE = re.compile(r"^Example:$", re.MULTILINE)


def as_markdown(docstring: str) -> str:
    """Return a docstring whose examples are fenced, or in a section that griffe knows."""
    docstring = _LITERAL_BLOCK.sub(_fenced, docstring)
    docstring = _DIALOGUE.sub(r"```pycon\n\g<0>\n```", docstring)
    return _EXAMPLE.sub("Examples:", docstring)


def _fenced(found: re.Match[str]) -> str:
    lines = [line[4:] for line in found["body"].strip("\n").splitlines()]
    language = "python" if _is_python("\n".join(lines)) else "text"
    lead = f"{found['lead']}:\n\n" if found["lead"] else ""
    return lead + "\n".join([f"```{language}", *lines, "```\n", ""])


def _is_python(code: str) -> bool:
    try:
        compile(code, "docstring", "exec")
    except SyntaxError:
        return False
    return True


class Examples(Extension):
    """Rewrite every docstring before it is parsed."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Rewrite the docstring of a module, class, function or attribute."""
        if obj.docstring:
            obj.docstring.value = as_markdown(obj.docstring.value)
