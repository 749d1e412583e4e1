"""The documents are correct: what they name exists, and their tables equal the code's.

Tables, options, settings, paths and the map of modules are held against the code; a failure shows
what to write instead. That their code runs is tested by test_documented_code.py.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

import whale_ray as whale
from tests.collection import nothing_is_garbage
from tests.documents import (
    ARCHITECTURE,
    DOCUMENTS,
    FENCE,
    README,
    ROOT,
    SITE,
    blocks,
    hooks,
    page,
    pictures,
    resolve,
    section,
    spans,
    table_rows,
)
from whale_ray.api.topology.misuse import GROUPINGS
from whale_ray.applications.ride_hailing.settings import RideHailingSettings
from whale_ray.cli.main import main
from whale_ray.configs.errors import EXIT_FAILURE, EXIT_INTERRUPTED, EXIT_USAGE
from whale_ray.configs.loading import environment_name
from whale_ray.configs.settings import DECLARATIONS
from whale_ray.control.attempt_steps import STEPS
from whale_ray.metrics.export.catalogue import CATALOGUE
from whale_ray.metrics.job_metrics import JobMetrics
from whale_ray.metrics.operator_metrics import OperatorMetrics
from whale_ray.operators.expressions.spark_names import spark_translation_table
from whale_ray.operators.sinks.base import SinkResult

PARTS = ("configs", "transport", "state", "operators", "whale_ray")
GUIDE = {name: SITE[f"guide/{name}.md"] for name in ("groupings", "sources", "sinks", "running")}
ALL = "\n".join(DOCUMENTS.values())

FOREIGN_OPTIONS = {"--constraint"}
"""Options of other programs that stand in a code span of their own."""

MADE = ("out/", "docs/site")
"""Where paths begin that a run or a build makes."""


def test_the_readme_is_short_and_first_programs_shorter():
    assert README.count("\n") <= 150
    for text in (README, SITE["guide/first-program.md"]):
        first = blocks(text, "python")[0].body
        assert len([line for line in first.splitlines() if line.strip()]) <= 15


# --- names ----------------------------------------------------------------------------------


def test_every_public_name_in_a_code_span_exists():
    names = {
        name
        for span in spans(ALL)
        for name in re.findall(r"\b(?:whale|whale_ray)(?:\.[A-Za-z_]\w*)+", span)
    }
    assert len(names) > 20
    for name in sorted(names):
        resolve(name)


def test_every_public_name_is_in_the_reference():
    referred = set(re.findall(r"^::: whale_ray\.([\w.]+)", ALL, re.MULTILINE))
    private = {"__version__"}
    assert set(whale.__all__) - private <= referred
    for name in referred:
        module, _, last = f"whale_ray.{name}".rpartition(".")
        found = importlib.import_module(module)  # a module may be hidden by its own function
        assert hasattr(found, last) or importlib.import_module(f"{module}.{last}")


def test_the_methods_of_a_job_and_of_a_result_exist():
    of_job = re.search(r"returns a `Job`: (.*?)\. ", GUIDE["running"], re.DOTALL)
    of_result = re.search(r"The result also has (.*?)\. ", GUIDE["sinks"], re.DOTALL)
    assert of_job and of_result
    for text, owner in ((of_job[1], whale.Job), (of_result[1], SinkResult)):
        names = re.findall(r"`(\w+)(?:\(\w*\))?`", text)
        assert len(names) >= 4
        assert not [name for name in names if not hasattr(owner, name)], owner
    source = inspect.getsource(whale.Job)
    for name in set(re.findall(r"\bjob\.(\w+)", "".join(spans(ALL)))):
        assert hasattr(whale.Job, name) or f"self.{name} = " in source, name
    for name in set(re.findall(r"job\.metrics\(\)\.(\w+)", ALL)):
        assert hasattr(JobMetrics, name) or name in JobMetrics.__dataclass_fields__, name


def test_the_methods_of_a_process_exist():
    spanned = [
        name for span in spans(SITE["guide/processes.md"]) for name in re.findall(r"\bon_\w+", span)
    ]
    hooks = {name for name in dir(whale.Process) + dir(whale.CoProcess) if name.startswith("on_")}
    assert set(spanned) == hooks


def test_the_testing_helpers_exist():
    named = {
        name
        for row in table_rows(SITE["guide/testing.md"])
        for name in re.findall(r"`(\w+)`", row[0])
    }
    assert named <= set(whale.testing.__all__)


# --- tables ---------------------------------------------------------------------------------


def test_the_pyspark_tables_are_the_operators_own():
    for table in spark_translation_table().rstrip("\n").split("\n\n"):
        assert f"\n\n{table}\n\n" in page("from-pyspark.md")


def test_the_table_of_settings_has_every_setting_with_its_default():
    row = re.compile(r"^\| `([\w.]+)` \| (?:`(.*?)`|empty) \|", re.MULTILINE)
    shown = dict(row.findall(page("operations/settings.md")))
    assert {path: text.lower() for path, text in shown.items()} == {
        path: str(one.default).lower() for path, one in DECLARATIONS.items()
    }


def test_the_tables_of_metrics_have_every_metric():
    row = re.compile(r"^\| `(whale_ray_\w+)` \| (\w+) \| (.+?)(?: By `(\w+)`\.)? \|$", re.MULTILINE)
    metrics = [metric for group in CATALOGUE for metric in group.metrics]
    assert row.findall(page("operations/metrics.md")) == [
        (one.name, one.kind.value, one.meaning, one.by) for one in metrics
    ]


def test_the_table_of_groupings_is_complete():
    named = [re.match(r"`(\w+)\(", row[0]) for row in table_rows(GUIDE["groupings"])]
    assert sorted(found[1] for found in named if found) == sorted(GROUPINGS)


@pytest.mark.parametrize("name", ["sources", "sinks"])
def test_the_table_of_sources_or_sinks_is_complete(name):
    listed = {one for row in table_rows(GUIDE[name]) for one in re.findall(r"`(\w+)`", row[0])}
    module = {"sources": whale.sources, "sinks": whale.sinks}[name]
    assert listed == {one for one in module.__all__ if one.islower()}


def test_the_watch_line_is_what_the_metrics_write():
    (shown,) = [block.body for block in blocks(SITE["guide/watching.md"], "text")]

    def operator(name: str, rate: float, **values: Any) -> OperatorMetrics:
        fields = dict.fromkeys(inspect.signature(OperatorMetrics).parameters)
        fields |= {"busy": 0.0, "busiest_instance": 0, "back_pressured": 0.0, "gauges": {}}
        fields |= values
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


def test_the_sizes_are_those_that_make_prints():
    told = set(re.findall(r"[\d,]+ MB", (ROOT / "Makefile").read_text(encoding="utf-8")))
    written = set(re.findall(r"[\d,]+ MB", section("Install", README)))
    assert len(written) > 3
    assert written <= told


def test_the_numbers_of_the_application_are_its_defaults():
    text = " ".join(SITE["applications/ride-hailing.md"].split())
    settings = RideHailingSettings()
    assert f"{settings.matching_instances} matching instances" in text
    assert f"at most {settings.max_age_s:.0f} s old" in text
    assert f"within {settings.radius_m:,.0f} m" in text


# --- commands, settings, paths ----------------------------------------------------------------


def written_commands() -> list[list[str]]:
    """Return the words of every written call of `whale-ray`, without its name, each once."""
    lines = [line for block in blocks(ALL, "sh") for line in block.body.splitlines()]
    lines += [span for span in spans(ALL) if "whale-ray " in span]
    found = []
    for line in lines:
        words = shlex.split(line, comments=True)
        if "whale-ray" in words[:-1]:
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
            ["run", "stock-exchange"],
            ["run", "options-market"],
            ["run", "nexmark"],
            ["run", "yahoo"],
            ["run", "cluster-monitoring"],
            ["run", "slash-nexmark"],
            ["run", "read-only-count"],
            ["run", "linear-road"],
            ["run", "taxi-regions"],
            ["stop"],
            ["bench"],
            ["simulate"],
            ["optimize"],
            ["metrics"],
            ["compile"],
        )
    )
    named = {span.split()[0] for span in spans(ALL) if span.startswith("--")} - FOREIGN_OPTIONS
    assert len(named) > 3
    assert not [option for option in named if option not in told]


def test_the_exit_codes_are_those_of_the_command():
    assert (
        f"exits with 0; {EXIT_FAILURE} if the job failed, {EXIT_USAGE} if it was called wrongly, "
        f"{EXIT_INTERRUPTED} if"
    ) in " ".join(GUIDE["running"].split())


def test_the_targets_of_make_exist():
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    named = {span.split()[1] for span in spans(ALL) if re.match("make [a-z]", span)}
    assert phony and {"run", "test", "docs"} <= named <= set(phony[1].split())


SECTION = "(?:transport|runtime|multicast|spark|metrics)"


def test_every_setting_exists_and_has_the_value_that_is_given():
    pattern = rf"`({SECTION}\.[a-z]\w+)(?:=([\w-]+))?`(?: \(([\d.]+)\))?"
    found = [one for text in DOCUMENTS.values() for one in re.findall(pattern, text)]
    assert len(found) > 40
    for path, value, default in found:
        assert path in DECLARATIONS, path
        if value:
            whale.Settings().with_overrides({path: value})
        if default:
            assert str(DECLARATIONS[path].default) == default, path
    not_run = re.sub(r"^```python\n.*?^```$", "", ALL, flags=re.MULTILINE | re.DOTALL)
    for assigned in re.findall(rf"\b({SECTION}\.\w+)[\"=]", not_run):
        assert assigned in DECLARATIONS, assigned


def test_every_environment_variable_exists():
    known = {environment_name(path) for path in DECLARATIONS} | {"WHALE_RAY_DATA"}
    named = set(re.findall(r"WHALE_RAY_[A-Z_]+", ALL))
    assert len(named) > 2
    assert named <= known


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_and_paths_lead_somewhere(name):
    """Links between pages, anchors included, are checked by `make docs` as well."""
    text = FENCE.sub("", DOCUMENTS[name])
    links = [link for link in re.findall(r"\]\(([^)#]+)[^)]*\)", text) if "://" not in link]
    assert not [link for link in links if not (ROOT / name).parent.joinpath(link).exists()]
    paths = [one for one in spans(text) if re.fullmatch(r"[\w.-]+/[\w./-]*\w", one)]
    paths = [path for path in paths if not path.startswith(MADE)]
    assert not [path for path in paths if not (ROOT / path).exists()]


def test_every_page_is_in_the_navigation():
    """Mkdocs would leave it out without a warning."""
    listed = re.findall(r": (\S+\.md)$", (ROOT / "docs" / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(SITE)


def test_the_package_shows_the_readme():
    assert '\nreadme = "README.md"\n' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert SITE["results/index.md"].count("<!-- figures -->") == 1


def test_simulated_figures_say_so():
    assert "Simulated, not measured" in SITE["results/simulated.md"]
    for name, text in DOCUMENTS.items():
        if "whale-ray simulate" in text and name.startswith("docs/pages/results/"):
            assert name.endswith("simulated.md"), name


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
    (block,) = blocks(section("Modules", ARCHITECTURE), "text")
    for line in block.body.splitlines():
        if not line.startswith(" "):
            folder = line
            continue
        names, what = re.split(r"\s{2,}", line.strip(), maxsplit=1)
        assert what, f"say what it is: {line}"
        found += [f"{folder}{name}.py" for name in names.strip("{}").split(",")]
    return found


@pytest.mark.parametrize(("what", "least"), [("row", 30), ("checkpoint", 12)])
def test_every_function_on_the_way_is_where_the_walk_says(what, least):
    walk = blocks(section(f"The life of a {what}", ARCHITECTURE), "text")[-1]
    steps = re.findall(r"^  (\w+(?:\.\w+)?) +(\S+\.py)", walk.body, re.MULTILINE)
    assert len(steps) > least
    for name, path in steps:
        part, *rest = path.removesuffix(".py").split("/")
        module = ".".join(["whale_ray", *([] if part == "whale_ray" else [part]), *rest])
        found: Any = importlib.import_module(module)
        for attribute in name.split("."):
            found = getattr(found, attribute)
        assert found.__module__ == module, f"{name} is not defined in {path}"


def test_the_map_lists_every_module_once_and_no_other():
    listed = mapped()
    assert sorted(listed) == sorted(set(listed))
    missing, gone = modules() - set(listed), set(listed) - modules()
    assert not missing, f"add to the map in ARCHITECTURE.md: {sorted(missing)}"
    assert not gone, f"remove from the map in ARCHITECTURE.md: {sorted(gone)}"


def test_the_steps_of_an_attempt_are_the_controllers():
    diagram = blocks(section("The life of a job", ARCHITECTURE), "text")[0]
    assert tuple(diagram.body.splitlines()[0].split()) == (*STEPS, "publish")


# --- drawings -------------------------------------------------------------------------------


def test_the_steps_of_the_drawn_way_are_in_the_code():
    drawn = (*pictures.SENDING, *pictures.RECEIVING, pictures.RING, pictures.MIRROR)
    steps = {code for *_, code in (*drawn, *pictures.RELAYS)}
    defined = {
        node.name
        for part in PARTS
        for path in (ROOT / part).rglob("*.py")
        if any(f"class {step}" in (text := path.read_text(encoding="utf-8")) for step in steps)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ClassDef)
    }
    assert len(steps) > 8
    assert steps <= defined


@pytest.mark.long
def test_the_drawn_packages_import_only_packages_below_them(monkeypatch):
    with nothing_is_garbage():
        needs = pictures.package_imports()
    monkeypatch.setattr(pictures, "package_imports", lambda: needs)  # drawn without reading again
    height = {package: row for row, level in enumerate(pictures.layers(needs)) for package in level}
    assert height["configs"] == 0
    assert needs["transport"] >= {"configs"}
    upwards = [
        (package, needed)
        for package, needs_of_it in needs.items()
        for needed in needs_of_it
        if height[needed] >= height[package]
    ]
    assert not upwards, "packages that import each other"
    drawing = pictures.packages()
    for package in height:
        assert f">{package}/<" in drawing


@pytest.mark.parametrize("name", [name for name, text in SITE.items() if "<!-- gener" in text])
def test_what_is_generated_into_a_page_is_there(name):
    with nothing_is_garbage():
        made = page(name)
    assert not hooks.MARKER.search(made)
    assert len(made) > len(SITE[name]) + 500
