"""Every Python block of README.md and of the pages runs, and prints the output shown below it.

The blocks of a page run one after the other, each with the names of those before it, as a reader
pastes them. A block `output` below one is what that one prints. A block marked
`<!-- not run: REASON -->` is compiled only. Where a page shows a program of examples/, that is run
by test_examples.py.
"""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import re
import runpy
from itertools import pairwise
from pathlib import Path

import pytest

from tests.documents import DOCUMENTS, ROOT, SITE, Block, blocks, page, resolve


def runnable(text: str) -> list[Block]:
    """Return the Python blocks that stand on the page itself and are not excused."""
    return [block for block in blocks(text, "python") if not block.reason]


@pytest.mark.parametrize("name", [name for name, text in DOCUMENTS.items() if runnable(text)])
def test_the_blocks_of_a_document_run_and_print_what_is_said(
    name, tmp_path, monkeypatch, capsys, no_leaks
):
    monkeypatch.chdir(tmp_path)
    text = DOCUMENTS[name]
    said = {
        block: after.body for block, after in pairwise(blocks(text)) if after.language == "output"
    }
    script = Path(tmp_path / "pasted" / Path(name).with_suffix(".py").name)
    script.parent.mkdir()
    names = {}
    for block in runnable(text):
        # Empty lines above, so that a traceback gives the line of the document.
        script.write_text("\n" * block.line + block.body, encoding="utf-8")
        names = runpy.run_path(str(script), init_globals=names, run_name="__main__")
        printed = capsys.readouterr().out
        if block in said:
            assert printed == said.pop(block), f"{name}:{block.line}"
    assert not said, "an output stands below a block that is not run"


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_block_that_is_not_run_says_why_and_compiles(name):
    for block in blocks(DOCUMENTS[name], "python"):
        if block.reason:
            assert len(block.reason.split()) > 3
            compile(block.body, name, "exec")


# --- docstrings, of which the API reference is made -------------------------------------------

FILES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for part in ("configs", "transport", "state", "operators", "whale_ray")
    for path in sorted((ROOT / part).rglob("*.py"))
}
LITERAL = re.compile(r"::\n((?:\n|    .*(?:\n|\Z))+)")


@pytest.mark.parametrize("name", [name for name, text in FILES.items() if ">>> " in text])
def test_a_dialogue_in_docstrings_goes_as_written(name):
    path = name.removeprefix("whale_ray/").removesuffix(".py").removesuffix("/__init__")
    result = doctest.testmod(importlib.import_module(f"whale_ray.{path.replace('/', '.')}"))
    assert result.attempted
    assert not result.failed


def literal_blocks(text: str) -> list[str]:
    """Return the examples behind `::` in the docstrings of a file."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
    docstrings = [
        ast.get_docstring(node) or ""
        for node in ast.walk(ast.parse(text))
        if isinstance(node, kinds)
    ]
    return [inspect.cleandoc("\n" + body) for doc in docstrings for body in LITERAL.findall(doc)]


def test_an_example_in_a_docstring_compiles_and_names_what_exists():
    examples = [
        block
        for text in FILES.values()
        if "::" in text and "whale." in text  # others need not be parsed
        for block in literal_blocks(text)
        if "whale." in block
    ]
    assert len(examples) > 4
    for example in examples:
        for node in ast.walk(ast.parse(example)):
            if isinstance(node, ast.Attribute) and re.fullmatch(
                r"whale(\.\w+)+", ast.unparse(node)
            ):
                resolve(ast.unparse(node))


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_fenced_block_says_what_it_is(name):
    text = DOCUMENTS[name]
    assert text.count("\n```") == 2 * len(blocks(text)), "name the language of every block"
    assert {block.language for block in blocks(text)} <= {"python", "sh", "text", "output", "yaml"}


def test_every_program_is_shown_among_the_examples_and_where_it_belongs():
    shown = {
        name: re.findall(r"^<!-- generated: (examples/.+) -->$", text, re.MULTILINE)
        for name, text in SITE.items()
    }
    programs = [path.relative_to(ROOT).as_posix() for path in (ROOT / "examples").glob("*.py")]
    assert sorted(shown["examples.md"]) == sorted(programs)
    topologies = {
        path.relative_to(ROOT).as_posix() for path in (ROOT / "examples").glob("tspec/*.yaml")
    }
    everywhere = {path for paths in shown.values() for path in paths}
    assert everywhere - topologies == set(programs)
    for path in programs:
        assert (ROOT / path).read_text(encoding="utf-8") in page("examples.md")
