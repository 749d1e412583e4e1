"""The house rules, enforced: each test names every offender as `file:line what`.

Rules that ruff knows too are repeated only where they must hold without a way round it.
"""

from __future__ import annotations

import ast
import functools
import gc
import io
import re
import subprocess
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PARTS = ("configs", "transport", "state", "operators", "whale_ray")
MAY_PRINT = ("whale_ray/cli/", "whale_ray/lab/bench/")
CLOCK = "transport/clock.py"

TOP = {"README.md", "LICENSE", "CHANGELOG.md", "ARCHITECTURE.md", "Makefile", "pyproject.toml"}
TOP |= {*PARTS, "tests", "docs", "examples", ".ci", ".gitignore"}

FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 70
COLUMNS_MAX = 100
REASON = re.compile(r"[A-Za-z].{5,}")
"""A reason is a word or more."""


def files_of(*folders: str) -> list[Path]:
    """Return the Python files under `folders` (the links to the parts are not followed)."""
    found = []
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            relative = path.relative_to(ROOT).parts
            if not (relative[0] == "whale_ray" and (ROOT / "whale_ray" / relative[1]).is_symlink()):
                found.append(path)
    return found


PRODUCT = files_of(*PARTS)
TESTS = files_of("tests")
DOCUMENTS = files_of("docs", "examples")


@functools.cache
def source_of(path: Path) -> str:
    """Return the text of a file."""
    return path.read_text(encoding="utf-8")


@functools.cache
def tree_of(path: Path) -> ast.Module:
    """Return the syntax tree of a file."""
    return ast.parse(source_of(path), filename=str(path))


@functools.cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """Return all nodes of a file's syntax tree."""
    return tuple(ast.walk(tree_of(path)))


@pytest.fixture(autouse=True, scope="module")
def without_garbage_collection() -> Iterator[None]:
    """Trees of all files are millions of objects, which the collector would look through often."""
    gc.disable()
    yield
    for cached in (tree_of, nodes_of):
        cached.cache_clear()
    gc.enable()


def name_of(path: Path) -> str:
    """Return a file's path as the messages give it."""
    return path.relative_to(ROOT).as_posix()


def calls_in(path: Path, *words: str) -> Iterator[tuple[ast.Call, str]]:
    """Yield the calls of a file with the dotted name of what is called, as far as it is one.

    None of a file that has none of the words in it: to write all names down takes seconds.
    """
    has_words = any(word in source_of(path) for word in words)
    for node in nodes_of(path) if has_words else ():
        if isinstance(node, ast.Call):
            yield node, ast.unparse(node.func)


def test_there_is_something_to_check():
    assert len(PRODUCT) > 10
    assert {name_of(path).split("/")[0] for path in PRODUCT} == set(PARTS)


def test_what_is_tracked_at_the_top_is_meant_to_be_there():
    tracked = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert {path.split("/")[0] for path in tracked.stdout.split("\0") if path} == TOP


def test_no_file_is_too_long():
    lengths = {name_of(path): source_of(path).count("\n") for path in PRODUCT + TESTS + DOCUMENTS}
    assert not {name: lines for name, lines in lengths.items() if lines > FILE_LINES_MAX}


def test_no_line_is_too_long():
    offenders = [
        f"{name_of(path)}:{number}"
        for path in PRODUCT + TESTS + DOCUMENTS
        for number, line in enumerate(source_of(path).splitlines(), 1)
        if len(line) > COLUMNS_MAX
    ]
    assert not offenders


def test_no_function_is_too_long():
    offenders = [
        f"{name_of(path)}:{node.lineno} {node.name}"
        for path in PRODUCT + TESTS + DOCUMENTS
        for node in nodes_of(path)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and (node.end_lineno or 0) - node.lineno >= FUNCTION_LINES_MAX
    ]
    assert not offenders


def test_every_module_and_public_name_has_a_docstring():
    offenders = [
        f"{name_of(path)} (module)"
        for path in PRODUCT + TESTS + DOCUMENTS
        if not ast.get_docstring(tree_of(path))
    ]
    definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    for path in PRODUCT:
        scopes: list[ast.Module | ast.ClassDef] = [tree_of(path)]
        while scopes:
            for node in scopes.pop().body:
                if not isinstance(node, definitions) or node.name.startswith("_"):
                    continue
                is_overload = any("overload" in ast.unparse(one) for one in node.decorator_list)
                is_setter = any(".setter" in ast.unparse(one) for one in node.decorator_list)
                if not (is_overload or is_setter or ast.get_docstring(node)):
                    offenders.append(f"{name_of(path)}:{node.lineno} {node.name}")
                if isinstance(node, ast.ClassDef):
                    scopes.append(node)
    assert not offenders


def test_only_the_command_line_and_benchmarks_print():
    offenders = [
        f"{name_of(path)}:{call.lineno}"
        for path in PRODUCT
        if not name_of(path).startswith(MAY_PRINT)
        for call, called in calls_in(path, "print")
        if called == "print"
    ]
    assert not offenders


def test_no_bare_except():
    offenders = [
        f"{name_of(path)}:{node.lineno}"
        for path in PRODUCT + TESTS + DOCUMENTS
        for node in nodes_of(path)
        if isinstance(node, ast.ExceptHandler) and node.type is None
    ]
    assert not offenders


def test_nothing_depends_on_pythons_hash():
    """`hash()` of a text differs from process to process: keys go through the stable hash."""
    offenders = []
    for path in PRODUCT:
        allowed = {
            id(call)
            for node in nodes_of(path)
            if isinstance(node, ast.FunctionDef) and node.name == "__hash__"
            for call in ast.walk(node)
        }
        offenders += [
            f"{name_of(path)}:{call.lineno}"
            for call, called in calls_in(path, "hash")
            if called == "hash" and id(call) not in allowed
        ]
    assert not offenders


@pytest.mark.parametrize("module", ["time", "random"])
def test_clock_and_randomness_are_passed_in(module):
    """Wall, monotonic time and sleep come from a Clock; random numbers from a seeded generator."""
    banned = {
        "time": {"time", "time_ns", "monotonic", "monotonic_ns", "sleep"},
        "random": {"random", "randint", "randrange", "choice", "shuffle", "sample", "uniform"},
    }[module]
    offenders = []
    for path in PRODUCT:
        if name_of(path) == CLOCK:
            continue
        for node in nodes_of(path):
            if isinstance(node, ast.Attribute):
                is_of_module = isinstance(node.value, ast.Name) and node.value.id == module
                used = {node.attr} & banned if is_of_module else set()
            elif isinstance(node, ast.ImportFrom) and node.module == module:
                used = {alias.name for alias in node.names} & banned
            else:
                continue
            offenders += [f"{name_of(path)}:{node.lineno} {module}.{name}" for name in used]
    assert not offenders


def test_no_test_sleeps():
    offenders = [
        f"{name_of(path)}:{call.lineno}"
        for path in TESTS
        for call, called in calls_in(path, "sleep")
        if called in {"time.sleep", "sleep"}
    ]
    assert not offenders


def test_every_queue_is_bounded():
    queues = {"Queue", "LifoQueue", "PriorityQueue", "JoinableQueue"}
    offenders = []
    for path in PRODUCT:
        for call, called in calls_in(path, "Queue", "deque"):
            kind = called.rpartition(".")[2]
            keywords = {keyword.arg for keyword in call.keywords}
            bounded = (
                kind not in queues | {"deque", "SimpleQueue"}
                or (kind == "deque" and ("maxlen" in keywords or len(call.args) > 1))
                or (kind in queues and ("maxsize" in keywords or bool(call.args)))
            )
            if not bounded:
                offenders.append(f"{name_of(path)}:{call.lineno} {called}")
    assert not offenders


def comments_of(path: Path, searched: re.Pattern[str]) -> Iterator[tuple[int, str, re.Match[str]]]:
    """Yield the comments of a file in which something is found, with their lines and the match."""
    if not searched.search(source_of(path)):
        return  # without taking the text apart
    for token in tokenize.generate_tokens(io.StringIO(source_of(path)).readline):
        found = searched.search(token.string) if token.type == tokenize.COMMENT else None
        if found:
            yield token.start[0], token.string, found


def test_every_exemption_gives_its_reason():
    code = r"[A-Z]+\d+"
    marker = re.compile(
        r"#\s*(?:type:\s*ignore(?:\[[\w, -]*\])?|mypy:\s*[\w-]+"
        rf"|(?:ruff:\s*)?noqa(?::\s*{code}(?:,\s*{code})*)?|pragma:\s*no cover)(?P<reason>.*)"
    )
    offenders = []
    for path in PRODUCT + TESTS + DOCUMENTS:
        for line, comment, found in comments_of(path, marker):
            if not REASON.search(found["reason"]):
                offenders.append(f"{name_of(path)}:{line} {comment}")
    assert not offenders


def test_nothing_is_left_to_do():
    offenders = [
        f"{name_of(path)}:{line} {comment}"
        for path in PRODUCT + TESTS + DOCUMENTS
        for line, comment, _ in comments_of(path, re.compile(r"\b(TODO|FIXME|HACK)\b"))
    ]
    assert not offenders


def test_no_file_names_the_machine_it_was_written_on():
    machine = [str(place) for place in (ROOT.parent, Path.home()) if len(place.parts) > 1]
    offenders = [
        f"{name_of(path)}:{number}"
        for path in PRODUCT + TESTS + DOCUMENTS
        for number, line in enumerate(source_of(path).splitlines(), 1)
        if any(f"{place}/" in line for place in machine)
    ]
    assert not offenders


def test_test_files_have_names_of_their_own_and_are_no_packages():
    names = Counter(path.name for path in TESTS if path.name != "conftest.py")
    assert not [name for name, count in names.items() if count > 1]
    assert "__init__.py" not in names


def test_no_two_classes_share_a_name():
    places: dict[str, list[str]] = {}
    for path in PRODUCT:
        for node in nodes_of(path):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(f"{name_of(path)}:{node.lineno}")
    assert not {name: where for name, where in places.items() if len(where) > 1}
