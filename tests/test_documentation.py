"""README.md and ARCHITECTURE.md say what is true: their code runs, and what they name exists.

A Python block of README.md behind `<!-- run -->` is run as pasted; the others, which need Ray or
Spark, are compiled and their names and keywords looked up. Tables, options, settings, paths and the
map of modules are held against the code; a failure shows what to write instead.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import itertools
import re
import runpy
import shlex
from pathlib import Path
from typing import Any

import pytest

import whale_ray as whale
from whale_ray.api.topology.misuse import GROUPINGS
from whale_ray.applications.ride_hailing.settings import RideHailingSettings
from whale_ray.cli.main import main
from whale_ray.configs.errors import EXIT_FAILURE, EXIT_INTERRUPTED, EXIT_USAGE
from whale_ray.configs.loading import environment_name
from whale_ray.configs.settings import DECLARATIONS
from whale_ray.control.controller import STEPS
from whale_ray.metrics.job_metrics import JobMetrics, OperatorMetrics
from whale_ray.operators.expressions.spark_names import spark_translation_table
from whale_ray.operators.sinks.base import SinkResult

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
DOCUMENTS = {"README.md": README, "ARCHITECTURE.md": ARCHITECTURE}
PARTS = ("configs", "transport", "state", "operators", "whale_ray")

FENCE = re.compile(r"(<!-- run -->\n)?^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FOREIGN_OPTIONS = {"--constraint"}
"""Options of other programs that stand in a code span of their own."""


def blocks(language: str, text: str = README, *, run: bool | None = None) -> list[str]:
    """Return the fenced blocks of a language; those to be run, or not, or all."""
    return [
        body
        for marked, kind, body in FENCE.findall(text)
        if kind == language and run in (None, bool(marked))
    ]


def spans(text: str = README) -> list[str]:
    """Return the code spans outside of fenced blocks."""
    return re.findall(r"`([^`\n]+)`", FENCE.sub("", text))


def section(title: str, text: str = README) -> str:
    """Return the text below a heading of the second level."""
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found, f"there is no section {title!r}"
    return found[1]


def table_rows(text: str) -> list[list[str]]:
    """Return the cells of a section's table, without its head."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


# --- code -----------------------------------------------------------------------------------


@pytest.mark.parametrize("number", range(len(blocks("python", run=True))))
def test_a_block_marked_to_run_runs_as_pasted(number, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("pasted.py").write_text(blocks("python", run=True)[number], encoding="utf-8")
    runpy.run_path("pasted.py", run_name="__main__")


def test_the_first_topology_is_short_and_prints_what_it_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    first = blocks("python", run=True)[0]
    assert len([line for line in first.splitlines() if line.strip()]) <= 15
    Path("pasted.py").write_text(first, encoding="utf-8")
    runpy.run_path("pasted.py", run_name="__main__")
    printed = re.findall(r"'b', 'total_km': ([\d.]+)", capsys.readouterr().out)
    said = re.search(r"# total_km: (.*), then (.*), of cab b", first)
    assert said and printed == [said[1], said[2]]


def test_the_three_ways_to_write_a_filter_do_the_same():
    written = re.findall(r"`(rows\.filter\([^`]+\))`", README)
    topology = whale.Topology("three-ways")
    rows = topology.source(whale.sources.iterable([{"km": 3.0}, {"km": 9.5}]), id="rows")
    for number, code in enumerate(written):
        stream = eval(code, {"rows": rows, "whale": whale})  # noqa: S307  # from our own README
        stream.sink(whale.sinks.collect(), id=f"way-{number}")
    job = whale.run(topology)
    found = [job.results(f"way-{number}").preview() for number in range(len(written))]
    assert found == [[{"km": 9.5}]] * 3


@pytest.mark.parametrize("body", blocks("python", run=False))
def test_a_block_that_needs_more_compiles_and_names_what_exists(body):
    tree = ast.parse(body)
    compile(tree, "README.md", "exec")
    assert "Ray" in README[: README.index(body)].rpartition("\n## ")[2], "say what it needs"
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("whale_ray"):
            module = importlib.import_module(node.module or "")
            assert not [alias.name for alias in node.names if not hasattr(module, alias.name)]
        if isinstance(node, ast.Call):
            check_call(node)


def check_call(call: ast.Call) -> None:
    """Check the name and the keywords of a call of something in `whale`, or of its methods."""
    written = ast.unparse(call.func)
    keywords = {keyword.arg for keyword in call.keywords}
    if written.startswith("whale."):
        called = resolve(written)
        assert keywords <= set(inspect.signature(called).parameters), written
        return
    method = written.rpartition(".")[2]
    homes = (whale.Topology, whale.Stream, whale.GroupedStream, whale.ConnectedStream, whale.Job)
    taken = [inspect.signature(getattr(one, method)) for one in homes if hasattr(one, method)]
    assert not taken or any(keywords <= set(one.parameters) for one in taken), written


def resolve(dotted: str) -> Any:
    """Return what a dotted name that begins with whale or whale_ray stands for."""
    first, *rest = dotted.split(".")
    assert first in ("whale", "whale_ray")
    found: Any = whale
    for depth, name in enumerate(rest):
        if not hasattr(found, name) and inspect.ismodule(found):
            importlib.import_module(".".join(["whale_ray", *rest[: depth + 1]]))
        found = getattr(found, name)
    return found


def test_every_public_name_in_a_code_span_exists():
    names = {
        name
        for span in spans()
        for name in re.findall(r"\b(?:whale|whale_ray)(?:\.[A-Za-z_]\w*)+", span)
    }
    assert len(names) > 10
    for name in sorted(names):
        resolve(name)


def test_the_methods_of_a_job_and_of_a_result_exist():
    of_job = re.search(r"returns a `Job`: (.*?)\. ", README, re.DOTALL)
    of_result = re.search(r"`job\.results\(id\)` also has (.*?)\. ", README, re.DOTALL)
    assert of_job and of_result
    for text, owner in ((of_job[1], whale.Job), (of_result[1], SinkResult)):
        names = re.findall(r"`(\w+)(?:\(\w*\))?`", text)
        assert len(names) >= 5
        assert not [name for name in names if not hasattr(owner, name)], owner


def test_the_methods_of_a_process_exist():
    written = {
        name for name in re.findall(r"`(on_\w+)`", README) if name not in ("on_late", "on_bad_rows")
    }
    hooks = {name for name in dir(whale.Process) + dir(whale.CoProcess) if name.startswith("on_")}
    assert written == hooks


# --- tables ---------------------------------------------------------------------------------


def test_the_pyspark_table_is_the_operators_own():
    renamed, differences = spark_translation_table().rstrip("\n").split("\n\n")
    head, rule, *rows = renamed.splitlines()
    half = -(-len(rows) // 2)
    pairs = itertools.zip_longest(rows[:half], rows[half:], fillvalue="| | |")
    side_by_side = [f"{left[:-1]}{right}" for left, right in ((head, head), (rule, rule), *pairs)]
    for table in ("\n".join(side_by_side), differences):
        assert f"\n\n{table}\n\n" in README, f"write this into README.md:\n{table}"


def test_the_table_of_groupings_is_complete():
    named = [re.match(r"`(\w+)\(", row[0]) for row in table_rows(section("Groupings"))]
    assert sorted(found[1] for found in named if found) == sorted(GROUPINGS)


def test_the_table_of_sources_and_sinks_is_complete():
    listed: dict[str, set[str]] = {"sources": set(), "sinks": set()}
    for names, source, sink in table_rows(section("Sources and sinks")):
        for name in re.findall(r"`(\w+)`", names):
            listed["sources"] |= {name} if source else set()
            listed["sinks"] |= {name} if sink else set()
    for where, module in (("sources", whale.sources), ("sinks", whale.sinks)):
        assert listed[where] == {name for name in module.__all__ if name.islower()}


def test_the_watch_line_is_what_the_metrics_write():
    (shown,) = blocks("text")

    def operator(name: str, rate: float, **values: Any) -> OperatorMetrics:
        fields = dict.fromkeys(inspect.signature(OperatorMetrics).parameters)
        fields |= {"busy": 0.0, "busiest_instance": 0, "back_pressured": 0.0, **values}
        return OperatorMetrics(**{**fields, "operator_id": name, "rate_per_s": rate})

    metrics = JobMetrics(
        (
            operator("trips", 61_000.0, back_pressured=0.88),
            operator("total", 60_000.0, lag_ms=4000.0, busy=0.97, busiest_instance=3),
            operator("out", 60_000.0, busy=0.05),
        ),
        cpu_s=0.0,
        attempt=0,
    )
    assert shown == f"mileage: running | {metrics.watch_line()}\n"


def test_the_sizes_are_those_that_make_tells():
    told = set(re.findall(r"[\d,]+ MB", (ROOT / "Makefile").read_text(encoding="utf-8")))
    written = set(re.findall(r"[\d,]+ MB", section("Two commands")))
    assert written == told


def test_the_numbers_of_the_application_are_its_defaults():
    text = section("The ride-hailing application")
    settings = RideHailingSettings()
    assert f"{settings.matching_instances} matching instances" in text
    assert f"at most {settings.max_age_s:.0f} s old" in text
    assert f"within {settings.radius_m:,.0f} m" in text


# --- commands, settings, paths ----------------------------------------------------------------


def written_commands() -> list[list[str]]:
    """Return the words of every call of `whale-ray` in README.md, without its name, each once."""
    lines = [line for body in blocks("sh") for line in body.splitlines()] + spans()
    found = []
    for line in lines:
        words = shlex.split(line, comments=True)
        if "whale-ray" in words:
            found.append(words[words.index("whale-ray") + 1 :])
    return [words for number, words in enumerate(found) if words not in found[:number]]


def help_of(words: list[str], folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Return what `--help` prints for a command, and for `run` for what it runs."""
    asked = words[:1]
    if words[0] == "run":
        asked.append(words[1])
        if words[1] == "file.py:topology":
            (folder / "file.py").write_text(
                "import whale_ray as whale\ntopology = whale.Topology('empty')\n"
            )
            asked[1] = f"{folder}/file.py:topology"
    with pytest.raises(SystemExit) as ended:
        main([*asked, "--help"])
    assert ended.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("words", written_commands(), ids=" ".join)
def test_a_command_and_its_options_exist(words, tmp_path, capsys):
    if words[0].startswith("-"):
        with pytest.raises(SystemExit):
            main(["--help"])
        assert words[0] in capsys.readouterr().out
        return
    told = help_of(words, tmp_path, capsys)
    for word in words:
        if word.startswith("--"):
            assert re.search(rf"(?<![\w-]){word}(?![\w-])", told), f"{word}\n{told}"


def test_an_option_that_is_named_alone_exists(tmp_path, capsys):
    told = "".join(
        help_of(words, tmp_path, capsys)
        for words in (
            ["run", "file.py:topology"],
            ["run", "ride-hailing"],
            ["run", "options-market"],
            ["stop"],
            ["bench"],
            ["simulate"],
        )
    )
    named = {span.split()[0] for span in spans() if span.startswith("--")} - FOREIGN_OPTIONS
    assert len(named) > 3
    assert not [option for option in named if option not in told]


def test_the_exit_codes_are_those_of_the_command():
    assert (
        f"exits with 0; {EXIT_FAILURE} if the job failed, {EXIT_USAGE} if it was called wrongly, "
        f"{EXIT_INTERRUPTED} if"
    ) in " ".join(README.split())


def test_the_targets_of_make_exist():
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    named = {span.split()[1] for span in spans() if span.startswith("make ")}
    assert phony and {"run", "test"} <= named <= set(phony[1].split())


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_setting_exists_and_has_the_value_that_is_given(name):
    text = DOCUMENTS[name]
    pattern = r"`((?:transport|runtime|spark)\.[a-z]\w+)(?:=([\w-]+))?`(?: \(([\d.]+)\))?"
    found = re.findall(pattern, text)
    assert len(found) > 5
    for path, value, default in found:
        assert path in DECLARATIONS, path
        if value:
            whale.Settings().with_overrides({path: value})
        if default:
            assert str(DECLARATIONS[path].default) == default, path
    for assigned in re.findall(r"((?:transport|runtime|spark)\.\w+)[\"=]", text):
        assert assigned in DECLARATIONS


def test_every_environment_variable_exists():
    known = {environment_name(path) for path in DECLARATIONS} | {"WHALE_RAY_DATA"}
    named = set(re.findall(r"WHALE_RAY_\w+", README))
    assert named and named <= known


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_and_paths_lead_somewhere(name):
    text = DOCUMENTS[name]
    paths = re.findall(r"\]\(([^)#]+)\)", text)
    paths += [one for one in spans(text) if re.fullmatch(r"[\w.-]+/[\w./-]+", one)]
    paths = [path for path in paths if not path.startswith("out/")]  # of a run to come
    assert len(paths) > 3
    assert not [path for path in paths if "://" not in path and not (ROOT / path).exists()]


def test_the_package_shows_the_readme():
    assert '\nreadme = "README.md"\n' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert README.count("<!-- figures -->") == 1


# --- ARCHITECTURE.md ------------------------------------------------------------------------


def modules() -> set[str]:
    """Return the files of all modules; packages' own files only re-export."""
    return {
        path.relative_to(ROOT).as_posix()
        for part in PARTS
        for path in (ROOT / part).rglob("*.py")
        if path.name != "__init__.py"
        and not (part == "whale_ray" and path.relative_to(ROOT).parts[1] in PARTS)
    }


def mapped() -> list[str]:
    """Return the files that the map lists, `{one,other}` taken apart."""
    found, folder = [], ""
    (body,) = blocks("text", section("Modules", ARCHITECTURE))
    for line in body.splitlines():
        if not line.startswith(" "):
            folder = line
            continue
        names, what = re.split(r"\s{2,}", line.strip(), maxsplit=1)
        assert what, f"say what it is: {line}"
        found += [f"{folder}{name}.py" for name in names.strip("{}").split(",")]
    return found


def test_the_map_lists_every_module_once_and_no_other():
    listed = mapped()
    assert sorted(listed) == sorted(set(listed))
    missing, gone = modules() - set(listed), set(listed) - modules()
    assert not missing, f"add to the map in ARCHITECTURE.md: {sorted(missing)}"
    assert not gone, f"remove from the map in ARCHITECTURE.md: {sorted(gone)}"


def test_the_steps_of_an_attempt_are_the_controllers():
    diagram = blocks("text", section("The life of a job", ARCHITECTURE))[0]
    assert tuple(diagram.splitlines()[0].split()) == (*STEPS, "publish")
