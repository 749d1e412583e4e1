"""The command `whale-ray`: its output, its exit codes and its messages about mistakes.

Most tests call `main` in this process; those of signals start the command as a shell does.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import whale_ray as whale
from tests.whale_ray.mileage_fares import expected_fares
from whale_ray.api.job import Job, JobRunner
from whale_ray.cli.main import main
from whale_ray.configs.describing import describe_settings
from whale_ray.configs.errors import ResourceError
from whale_ray.control.outcome import JobOutcome
from whale_ray.metrics.export.catalogue import CATALOGUE
from whale_ray.metrics.export.grafana import dashboard
from whale_ray.metrics.job_metrics import JobMetrics
from whale_ray.transport.clock import VirtualClock

USER_CODE = Path(__file__).parents[1] / "user_code"
MILEAGE = f"{USER_CODE / 'mileage.py'}:topology"
FAILING = f"{USER_CODE / 'mileage.py'}:failing"
SUITES = "transport, rows, streaming, checkpoints, ride-hailing, one-to-many, dynamic, "
SUITES += "optimizer, options-market"
COMMANDS = "run, explain, bench, simulate, optimize, doctor, compile, list, attach, stop, "
COMMANDS += "savepoint, resume, state, settings, ui, metrics, completion"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Run every command in a folder of its own; forget the modules it imports."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("tariffs", None)


def error_of(words: list[str], code: int, capsys: pytest.CaptureFixture[str]) -> str:
    """Run a command that fails; return its only line on standard error, without the name."""
    assert main(words) == code
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("whale-ray: ") and printed.err.count("\n") == 1
    return printed.err.removeprefix("whale-ray: ").rstrip("\n")


# --- what is asked of the command itself ---


def test_without_a_command_it_explains_itself_and_fails(capsys: Any) -> None:
    assert main([]) == 2
    assert capsys.readouterr().out.startswith("usage: whale-ray [-h] [--debug] [--version] COMMAND")


@pytest.mark.parametrize(
    ("words", "usage"),
    [
        (["--help"], "whale-ray [-h]"),
        (["run", "--help"], "whale-ray run [-h] APP [OPTION ...]"),
        (["run", "ride-hailing", "--help"], "whale-ray run ride-hailing [-h] [--data DIR]"),
        (["run", "no-file.py:topology", "--help"], "whale-ray run no-file.py:topology [-h]"),
        (["explain", "--help"], "whale-ray explain [-h]"),
    ],
    ids=["whale-ray", "run", "application", "own", "explain"],
)
def test_help_starts_nothing(words: list[str], usage: str, capsys: Any) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(words)
    assert capsys.readouterr().out.startswith(f"usage: {usage}")


def test_the_version_is_the_package_s(capsys: Any) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"whale-ray {importlib.metadata.version('whale-ray')}\n"


# --- mistakes in how it is called ---

MISTAKES = {
    "rnu": f"argument COMMAND: unknown 'rnu' (did you mean run?); there are {COMMANDS}; "
    "see whale-ray --help",
    "quux": f"argument COMMAND: unknown 'quux'; there are {COMMANDS}; see whale-ray --help",
    "--wath": "unknown option --wath; see whale-ray --help",
    "run": "the following arguments are required: APP; see whale-ray run --help",
    "run ride-hialing": "unknown application 'ride-hialing' (did you mean ride-hailing?), "
    "or name your own: file.py or file.py:topology",
    "explain quux": "unknown application 'quux'; there is ride-hailing, stock-exchange, "
    "options-market, nexmark, yahoo, cluster-monitoring, slash-nexmark, read-only-count,"
    " linear-road, taxi-regions, or name your own: file.py or file.py:topology",
    "run mine.py": "mine.py: no such file; write path/to/file.py",
    "run mine.py:topology": "mine.py: no such file; write path/to/file.py:topology",
    "run ride-hailing --wrokers 3": "unknown option --wrokers (did you mean --workers?); "
    "see whale-ray run ride-hailing --help",
    "run ride-hailing --watc": "unknown option --watc (did you mean --watch?); "
    "see whale-ray run ride-hailing --help",
    "run --on inline mine.py:topology": "unknown option --on; see whale-ray run --help",
    "run mine.py:topology --on inlnie": "argument --on: unknown 'inlnie' (did you mean inline?); "
    "there are ray, processes, inline; see whale-ray run mine.py:topology --help",
    "run mine.py:topology --on inline --workers 2": "--workers means nothing with --on inline; "
    "leave one of them out",
    "run mine.py:topology --on processes --detach": "--detach means nothing with --on processes; "
    "leave one of them out",
    "explain ride-hailing --workers two": "argument --workers: invalid int value: 'two'; "
    "see whale-ray explain ride-hailing --help",
    "explain ride-hailing --workers -2": "--workers must lie between 0 and 4,096, not -2",
    "explain ride-hailing more": "unknown argument more; see whale-ray explain ride-hailing --help",
    "explain options-market --overwrite": "--overwrite means nothing without --output; leave it "
    "out",
    "explain options-market --set runtime.hosts=3": "runtime.hosts=3 is no part of the placement "
    "'shared-memory', which has 1; leave it out, or choose another placement",
    "explain ride-hailing --on processes --detach": "--detach means nothing with --on processes; "
    "leave one of them out",
    "explain ride-hailing --set transport.wtl_ms": "--set transport.wtl_ms lacks its value; "
    "write --set transport.wtl_ms=VALUE",
    "explain ride-hailing --set transport.wtlms=1": "transport.wtlms is not a setting; "
    "did you mean transport.wtl_ms?",
    "explain ride-hailing --set transport.mms_bytes=1": "transport.mms_bytes must lie between "
    "1,024 and 16,777,216, not 1",
    "explain ride-hailing --settings no.yaml": "no.yaml: no such settings file",
    "run ride-hailing --limit 0": "--limit 0 leaves nothing to do; give 1 or more",
    "bench transprot": f"argument SUITE: unknown 'transprot' (did you mean transport?); "
    f"there are {SUITES}; see whale-ray bench --help",
    "stop": "the following arguments are required: JOB; see whale-ray stop --help",
}


@pytest.mark.parametrize("line", MISTAKES)
def test_a_mistake_is_one_line_that_names_the_remedy(line: str, capsys: Any) -> None:
    assert error_of(line.split(), 2, capsys) == MISTAKES[line]


@pytest.mark.parametrize("place", range(4))
def test_debug_shows_the_traceback_wherever_it_stands(place: int, capsys: Any) -> None:
    words = ["explain", "ride-hailing", "--set=no.such=1"]
    words.insert(place, "--debug")
    assert main(words) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-1].startswith("whale-ray: no.such is not a setting; did you mean ")


def test_a_variable_that_is_no_topology_is_reported_with_those_that_are(capsys: Any) -> None:
    text = error_of(["run", f"{USER_CODE / 'mileage.py'}:fares"], 2, capsys)
    assert text.endswith("mileage.py has no topology called 'fares'; it has topology, failing")
    Path("none.py").write_text("topology = 5\n")
    text = error_of(["explain", "none.py:topology"], 2, capsys)
    assert text == ("none.py has no topology called 'topology'; assign whale.Topology(...) to it")


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("import os\nos.nix\n", "mine.py:2: AttributeError: module 'os' has no attribute 'nix'"),
        ("a = = 1\n", "mine.py: SyntaxError: invalid syntax (mine.py, line 1)"),
        ("import no_such_module\n", "mine.py:1: ModuleNotFoundError: No module named 'no_such_m"),
    ],
    ids=["name", "syntax", "import"],
)
def test_a_failing_file_is_reported_with_its_line(code: str, text: str, capsys: Any) -> None:
    Path("mine.py").write_text(code)
    words = ["run", "mine.py:topology", "--on", "inline"]
    told = error_of(words, 2, capsys)
    assert told.startswith(text) and told.endswith("; --debug shows the traceback")
    assert main([*words, "--debug"]) == 2
    assert "Traceback (most recent call last):" in capsys.readouterr().err


def test_a_mistake_in_the_topology_is_reported_unchanged(folder: Path, capsys: Any) -> None:
    Path("mine.py").write_text(
        "import whale_ray as whale\n"
        "topology = whale.Topology('mine')\n"
        "topology.source(whale.sources.parquet('gps/'), id='gps')\n"
    )
    assert error_of(["explain", "mine.py:topology"], 2, capsys) == (
        f"no file or folder '{folder}/gps'; correct the path"
    )


def test_ctrl_c_without_a_job_is_no_traceback(monkeypatch: Any, capsys: Any) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("whale_ray.doctor.examine", interrupt)
    assert error_of(["doctor"], 130, capsys) == "interrupted"


def test_sigterm_without_a_job_is_no_traceback(monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setattr("whale_ray.doctor.examine", lambda: signal.raise_signal(signal.SIGTERM))
    assert error_of(["doctor"], 143, capsys) == "interrupted"


# --- commands that answer ---


def test_explain_shows_the_plans_of_an_application(capsys: Any) -> None:
    assert main(["explain", "ride-hailing", "--workers", "2"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("topology ride-hailing\n")
    assert "Physical plan: 4 stages on 2 workers" in told
    assert re.search(r"^  1 +requests → match \(right\) +all ", told, re.MULTILINE)
    assert "7 × 4 MiB = 28 MiB of a budget of" in told


def test_explain_shows_what_the_same_options_would_run(capsys: Any, tmp_path: Path) -> None:
    words = ["--on", "inline", "--parallelism", "3", "--output", str(tmp_path)]
    assert main(["explain", "ride-hailing", *words]) == 0
    told = capsys.readouterr().out
    assert "Physical plan: 4 stages on 1 worker\n" in told
    assert re.search(r"^  2 +match +×3 ", told, re.MULTILINE)
    assert f"parquet {tmp_path}" in told
    assert main(["explain", "stock-exchange", "--parallelism", "5", "--workers", "2"]) == 0
    told = capsys.readouterr().out
    assert "on 2 workers" in told and "×5" in told
    assert main(["explain", "options-market", "--placement", "tcp", "--workers", "3"]) == 0
    told = capsys.readouterr().out
    assert "links between hosts: tcp" in told and "Hosts: 3" in told
    assert main(["explain", "options-market", "--placement", "fused"]) == 0
    assert "Edges: none, everything is fused" in capsys.readouterr().out


def test_explain_shows_the_plans_of_a_topology_of_one_s_own(capsys: Any) -> None:
    assert main(["explain", MILEAGE, "--workers=3", "--set", "transport.ring_bytes=65536"]) == 2
    assert "transport.ring_bytes_min" in capsys.readouterr().err
    assert main(["explain", MILEAGE, "--workers=3", "--set", "transport.ring_bytes=524288"]) == 0
    told = capsys.readouterr().out
    assert "Physical plan: 2 stages on 3 workers" in told
    assert "mileage.py:" in told and "3 × 512 KiB" in told
    assert not Path("out").exists()


def test_metrics_lists_all_of_them_or_prints_a_dashboard(capsys: Any) -> None:
    assert main(["metrics"]) == 0
    listed = re.findall(r"^(whale_ray_\w+) \(\w+\)$", capsys.readouterr().out, re.MULTILINE)
    assert listed == [metric.name for group in CATALOGUE for metric in group.metrics]
    assert main(["metrics", "--grafana"]) == 0
    assert json.loads(capsys.readouterr().out) == dashboard()


def test_settings_lists_all_of_them(capsys: Any) -> None:
    assert main(["settings"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for setting in describe_settings():
        assert any(line.startswith(f"{setting.path} = {setting.default!r}") for line in lines)
        assert f"    {setting.environment}" in lines


def test_the_doctor_answers_as_a_table_and_as_json(capsys: Any) -> None:
    assert main(["doctor"]) == 0
    told = capsys.readouterr().out
    assert main(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["application"] == "doctor"
    for finding in report["findings"]:
        assert re.search(rf"^{finding['status']} +{finding['name']} ", told, re.MULTILINE)


def test_a_closed_pipe_is_no_error() -> None:
    command = f"{sys.executable} -m whale_ray.cli.main settings"
    done = subprocess.run(
        ["bash", "-c", f"({command}; echo $? >code) | read -n 1"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == ""
    assert int(Path("code").read_text()) in {0, 1}  # 0: it wrote all before


# --- runs of a user's own topology ---


@pytest.mark.parametrize("options", ["--on inline", "--on processes --workers 2"])
def test_run_runs_a_topology_that_uses_the_module_beside_it(
    options: str, no_leaks: None, folder: Path, capsys: Any
) -> None:
    assert main(["run", MILEAGE, *options.split()]) == 0
    assert capsys.readouterr().out == f"out: 7 rows in {folder / 'out'}\n"
    found = pq.read_table("out").to_pylist()
    assert {row["cab"]: row["cents"] for row in found} == expected_fares()


def test_the_end_of_a_run_as_json(folder: Path, capsys: Any) -> None:
    assert main(["run", MILEAGE, "--on", "inline", "--json"]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert told.pop("seconds") > 0
    assert told == {
        "topology": "mileage",
        "state": "finished",
        "outputs": {"out": {"rows": 7, "path": str(folder / "out"), "partial": False}},
        "workers": 1,
        "restarts": 0,
        "checkpoint": "",
        "edges": told["edges"],
        "links": [],
    }
    carried = {edge["carried_by"] for edge in told["edges"]}
    assert carried == {"fused", "memory of each worker"}


@pytest.mark.parametrize("options", ["--on inline", "--on processes --workers 2"])
def test_a_job_that_fails_is_described_as_json(options: str, folder: Path, capsys: Any) -> None:
    assert main(["run", FAILING, *options.split(), "--json"]) == 1
    printed = capsys.readouterr()
    told = json.loads(printed.out.splitlines()[-1])
    assert (told["state"], told["kind"]) == ("failed", "UserFunctionError")
    assert told["error"].rstrip() in printed.err


@pytest.mark.parametrize(
    ("words", "kind", "code"),
    [("run none.py --json", "UsageError", 2), ("attach fares --json", "ResourceError", 1)],
)
def test_what_does_not_start_is_described_as_json(
    words: str, kind: str, code: int, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    def no_ray(address: str) -> None:
        raise ResourceError(f"no Ray at {address}")

    monkeypatch.setattr("whale_ray.ray_bridge.session.connect_ray", no_ray)
    assert main(words.split()) == code
    printed = capsys.readouterr()
    told = json.loads(printed.out)
    assert printed.err == f"whale-ray: {told['error']}\n"
    assert (told["state"], told["kind"]) == ("failed", kind)


def test_a_restart_is_reported(folder: Path, monkeypatch: Any, capsys: Any) -> None:
    reasons = {0: "", 1: "worker 3 died (signal 9)", 2: "relay of host-1 died (signal 11)"}
    all_metrics = [JobMetrics((), 0.0, attempt, lost=reasons[attempt]) for attempt in (0, 1, 0, 1)]
    told = iter(all_metrics)
    lost = JobOutcome("finished", {}, JobMetrics((), 0.0, 2, lost=reasons[2]), 1.0, 2, 4)

    class Restarted(JobRunner):
        def state(self) -> str:
            return "running"

        def metrics(self) -> JobMetrics:
            return next(told)

        def reconfigure(self, request: object) -> None:
            raise AssertionError

        def stop(self, drain: bool) -> None:
            raise NotImplementedError

        def join(self, timeout_s: float) -> JobOutcome | None:
            polls.append(timeout_s)
            clock.sleep_ns(round(timeout_s * 1e9))
            return lost if len(polls) > 20 else None

    polls: list[float] = []
    clock = VirtualClock()
    monkeypatch.setattr("whale_ray.api.job.SystemClock", lambda: clock)
    job = Job("fares-1", "fares", Restarted())
    monkeypatch.setattr("whale_ray.api.submission.submit", lambda *_given, **_options: job)
    assert main(["run", MILEAGE, "--json"]) == 0
    printed = capsys.readouterr()
    then = "the sources are read again from their start"
    assert printed.err == (
        f"fares: running\nfares: restart 1: {reasons[1]}; {then}\n"
        f"fares: restart 2: {reasons[2]}; {then}\nfares: finished in 1.0 s\n"
    )
    first, last = printed.out.splitlines()
    assert first == "restarts: 2"
    assert json.loads(last)["restarts"] == 2


def test_one_process_has_one_host(capsys: Any) -> None:
    assert main(["run", MILEAGE, "--on", "inline", "--set", "runtime.hosts=4"]) == 0
    assert capsys.readouterr().err.splitlines()[0] == (
        "whale-ray: runtime.hosts=4 means nothing with --on inline: one process has one host"
    )


def test_an_output_that_exists_is_refused(folder: Path, capsys: Any) -> None:
    earlier = folder / "out" / "part.parquet"
    earlier.parent.mkdir()
    earlier.touch()
    text = error_of(["run", MILEAGE, "--on", "inline"], 1, capsys)
    assert str(folder / "out") in text and "overwrite=True" in text
    assert list(earlier.parent.iterdir()) == [earlier]


def test_a_function_that_fails_shows_its_own_traceback(capsys: Any) -> None:
    assert main(["run", FAILING, "--on", "inline"]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert "mileage.py" in lines[1] and "no_such_fare" in lines[1]
    assert lines[-2:] == [
        "KeyError: 'cab0'",
        "in operator 'fares', instance 0; input: {cab='cab0', km=0}",
    ]


@pytest.fixture
def endless(folder: Path, no_leaks: None) -> Iterator[Any]:
    """Return a function that starts an endless topology, waits until rows flow, and returns it."""
    started: list[subprocess.Popen[str]] = []

    def start(name: str, *options: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "whale_ray.cli.main", "run"]
        process = subprocess.Popen(
            [*command, f"{USER_CODE / 'endless.py'}:{name}", "--on", "processes", *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            process_group=0,  # as a shell does: Ctrl-C reaches the whole group
        )
        started.append(process)
        wait_for(process, "flowing")
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def wait_for(process: subprocess.Popen[str], text: str) -> None:
    """Read a process' standard error up to the line that holds `text`."""
    assert process.stderr is not None
    seen = []
    for line in process.stderr:
        seen.append(line)
        if text in line:
            return
    raise AssertionError(f"ended without {text!r}: {''.join(seen)}")


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_a_signal_drains_the_output_is_whole_and_nothing_is_left(
    endless: Any, folder: Path, number: int
) -> None:
    process = endless("topology", "--workers", "2")
    os.killpg(process.pid, number)
    told, errors = process.communicate(timeout=150)
    assert process.returncode == 128 + number
    assert "Traceback" not in errors
    values = sorted(pq.read_table("out.partial")["v"].to_pylist())
    assert values == list(range(len(values))) and values
    assert told == (
        f"out: {len(values):,} rows in {folder / 'out.partial'} "
        "(partial: the input was not read to its end)\n"
    )
    assert [path.name for path in folder.iterdir()] == ["out.partial"]


@pytest.mark.long
def test_a_second_ctrl_c_cancels_even_a_function_that_does_not_return(
    endless: Any, folder: Path
) -> None:
    settings = ["--set", "runtime.kill_grace_ms=100", "--set", "runtime.poll_interval_ms=50"]
    process = endless("stuck", "--workers", "2", "--watch", *settings)
    os.killpg(process.pid, signal.SIGINT)
    wait_for(process, "endless: draining")
    os.killpg(process.pid, signal.SIGINT)
    told, errors = process.communicate(timeout=150)
    assert process.returncode == 130
    assert told == ""
    line = errors.splitlines()[-1]
    assert line == (
        "whale-ray: job 'endless' was cancelled; sinks that publish at its end published nothing"
    )
    assert list(folder.iterdir()) == []


def test_the_errors_of_the_command_are_those_of_the_api(capsys: Any) -> None:
    with pytest.raises(whale.errors.SettingsError) as caught:
        whale.load_settings(overrides={"transport.mms_bytes": "1"})
    assert error_of(["explain", MILEAGE, "--set", "transport.mms_bytes=1"], 2, capsys) == str(
        caught.value
    )
