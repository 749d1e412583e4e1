"""What is kept of runs: of real jobs, in folders of their own; bounded, and in no job's way."""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import stat
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

import whale_ray as whale
from whale_ray.api.job_requests import NewJob
from whale_ray.cli.main import main
from whale_ray.configs.errors import UserFunctionError
from whale_ray.configs.settings import RecordSettings, Settings
from whale_ray.control.supervisor import Supervisor
from whale_ray.deployment.local_fleet import LocalFleet
from whale_ray.metrics.counters import LatencyHistogram
from whale_ray.optimizer.decisions import Decides, OptimizerDecision, log_from_yaml
from whale_ray.records.folders import (
    DECISIONS,
    NOW,
    REQUEST,
    RunFolders,
    is_alive,
    is_led,
    replace_json,
)
from whale_ray.records.recorder import recorder_of
from whale_ray.testing import ListSource
from whale_ray.transport.clock import SystemClock, VirtualClock
from whale_ray.ui import run_reader
from whale_ray.ui.run_reader import RunReader

ROWS = [{"cab": f"c{n % 3}", "km": n} for n in range(300)]


def topology_of(function: Any, rows: list[dict[str, Any]] = ROWS) -> whale.Topology:
    topology = whale.Topology("recorded")
    source = topology.source(whale.sources.iterable(rows), id="rides")
    source.key_by("cab").map(function, id="fares", parallelism=2).sink(
        whale.sinks.collect(), id="out"
    )
    return topology


def settings_in(folder: Path, **more: object) -> Settings:
    overrides = {f"records.{name}": value for name, value in more.items()}
    return Settings().with_overrides({"records.folder": str(folder), **overrides})


def read(folder: Path, name: str) -> Any:
    return json.loads((folder / name).read_text(encoding="utf-8"))


def test_a_run_is_described_counted_and_ended(tmp_path):
    settings = settings_in(tmp_path)
    job = whale.run(topology_of(lambda row: {"cents": row.km * 2}), settings=settings)
    (folder,) = RunFolders(settings.records).all()
    assert folder.name == job.id
    described, now = read(folder, "job.json"), read(folder, "now.json")
    assert [one["id"] for one in described["operators"]] == ["rides", "fares", "out"]
    assert [(one["source"], one["target"]) for one in described["edges"]] == [
        ("rides", "fares"),
        ("fares", "out"),
    ]
    assert described["edges"][0]["grouping"] == "key by cab"
    counted = {one["operator_id"]: (one["rows_in"], one["rows_out"]) for one in now["operators"]}
    assert counted == {"rides": (300, 300), "fares": (300, 300), "out": (300, 300)}
    assert now["end"]["state"] == "finished" and now["end"]["error"] == ""
    assert not is_alive(folder)


def test_a_union_is_no_box_of_its_own_since_its_readers_take_its_streams(tmp_path):
    topology = whale.Topology("joined")
    one, other = (topology.source(whale.sources.iterable(ROWS), id=name) for name in "ab")
    one.union(other, id="both").map(lambda row: {"km": row.km}, id="fares").sink(
        whale.sinks.collect(), id="out"
    )
    whale.run(topology, settings=settings_in(tmp_path))
    (folder,) = RunFolders(settings_in(tmp_path).records).all()
    described = read(folder, "job.json")
    assert [one["id"] for one in described["operators"]] == ["a", "b", "fares", "out"]
    assert {(one["source"], one["target"]) for one in described["edges"]} == {
        ("a", "fares"),
        ("b", "fares"),
        ("fares", "out"),
    }
    line = json.loads((folder / "history.jsonl").read_text().splitlines()[-1])
    assert len(line["operators"]) == 4


def runs_on(tmp_path):
    """Return the folder of a run of this process that has not ended, and the sample of its end."""
    settings = settings_in(tmp_path)
    whale.run(topology_of(lambda row: {"km": row.km}), settings=settings)
    (folder,) = RunFolders(settings.records).all()
    ended = tmp_path / "ended.json"
    (folder / NOW).rename(ended)
    running = {**json.loads(ended.read_text()), "state": "running", "end": None}
    (folder / NOW).write_text(json.dumps(running))
    return RunFolders(settings.records), folder, ended


def test_a_job_is_there_though_the_clock_is_set(tmp_path, monkeypatch):
    """Linux tells when it booted by the clock: that time moves as the clock is set."""
    _, folder, _ = runs_on(tmp_path)
    boot_s = psutil.boot_time()
    monkeypatch.setattr(psutil._psplatform, "boot_time", lambda: boot_s + 3600)
    assert is_alive(folder)


def test_a_process_of_the_same_number_after_a_reboot_is_another(tmp_path):
    _, folder, _ = runs_on(tmp_path)
    described = read(folder, "job.json")
    (folder / "job.json").write_text(json.dumps({**described, "boot_id": "the boot before"}))
    assert not is_alive(folder)


def test_a_job_that_ends_while_it_is_looked_up_is_not_lost(tmp_path, monkeypatch):
    folders, folder, ended = runs_on(tmp_path)
    reader = RunReader(folders, SystemClock(), 1000)

    def is_led_until_it_ends(folder):
        found = is_led(folder)
        if ended.exists():
            ended.rename(folder / NOW)
        return found

    monkeypatch.setattr(run_reader, "is_led", is_led_until_it_ends)
    assert reader.now(folder)["state"] == "finished"


def test_a_job_that_has_ended_before_it_is_looked_up_is_not_lost(tmp_path, monkeypatch):
    """Its sample said that it runs, then it ended, so that its process is not there any more."""
    folders, folder, ended = runs_on(tmp_path)
    reader = RunReader(folders, SystemClock(), 1000)
    assert reader.now(folder)["state"] == "running"

    def has_ended(folder):
        ended.rename(folder / NOW)
        return False

    monkeypatch.setattr(run_reader, "is_led", has_ended)
    assert reader.now(folder)["state"] == "finished"


def test_decisions_are_kept_as_a_log_that_can_be_replayed(tmp_path, monkeypatch, capsys):
    settings = settings_in(tmp_path)
    step = OptimizerDecision(
        "rides", Decides.BATCH_ROWS, 8, "b", {"l_i_ns": math.inf, "n_ns": 5.0}, "as many as fit"
    )
    logical = topology_of(lambda row: {"km": row.km}).logical_plan()
    assignment = NewJob.checked(logical, settings, 1, decisions=(step,)).assignment(settings)
    clock = SystemClock()
    recorder = recorder_of(assignment, clock)
    Supervisor(assignment, LocalFleet(clock), clock, recorder=recorder).run()
    folder = tmp_path / assignment.job_id
    (shown,) = read(folder, "now.json")["decisions"]["steps"]
    assert (shown["operator"], shown["value"]) == ("rides", 8)
    assert shown["numbers"] == {"l_i_ns": None, "n_ns": 5.0}, "JSON knows no infinite numbers"
    kept = log_from_yaml((folder / DECISIONS).read_text(encoding="utf-8"), "log")
    assert kept == ("recorded", (step,))
    monkeypatch.setenv("WHALE_RAY_RECORDS__FOLDER", str(tmp_path))
    assert main(["optimize", "--replay", assignment.job_id]) == 0
    assert "1. rides: batch_rows = 8" in capsys.readouterr().out


def test_only_their_owner_may_read_records(tmp_path):
    settings = settings_in(tmp_path / "runs")
    job = whale.run(topology_of(lambda row: {"km": row.km}), settings=settings)
    for place in (tmp_path / "runs", tmp_path / "runs" / job.id):
        assert stat.S_IMODE(place.stat().st_mode) == 0o700


def test_a_failure_is_kept_with_the_users_own_traceback(tmp_path):
    def fail(row):
        raise ValueError("<script>a fare below zero</script>")

    settings = settings_in(tmp_path)
    with pytest.raises(UserFunctionError):
        whale.run(topology_of(fail), settings=settings)
    (folder,) = RunFolders(settings.records).all()
    end = read(folder, "now.json")["end"]
    assert (end["state"], end["kind"], end["operator"]) == ("failed", "UserFunctionError", "fares")
    assert "ValueError: <script>a fare below zero</script>" in end["traceback"]
    assert "test_run_records.py" in end["traceback"] and "supervisor.py" not in end["traceback"]
    assert "km" in end["row"]


def test_the_list_of_jobs_tells_of_detached_ones_that_failed(tmp_path, monkeypatch, capsys):
    def fail(row):
        raise ValueError(f"{row.km} is too far")

    settings = settings_in(tmp_path)
    for detached in (True, False):
        assignment = NewJob.checked(topology_of(fail).logical_plan(), settings, 1).assignment(
            settings
        )
        clock = SystemClock()
        recorder = recorder_of(assignment, clock, detached=detached)
        outcome = Supervisor(assignment, LocalFleet(clock), clock, recorder=recorder).run()
        assert outcome.state == "failed"
    monkeypatch.setenv("WHALE_RAY_RECORDS__FOLDER", str(tmp_path))
    monkeypatch.setattr("whale_ray.deployment.on_ray.ray_jobs.list_jobs", lambda _address: [])
    assert main(["list"]) == 0
    first, *failed = capsys.readouterr().out.splitlines()
    assert first == "no job runs"
    (line,) = failed
    assert re.match(r"recorded-\w+  recorded  failed: ValueError: 0 is too far, in operator", line)
    assert main(["list", "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)
    assert (told["name"], told["state"]) == ("recorded", "failed")


def test_the_oldest_runs_that_have_ended_are_removed(tmp_path):
    settings = settings_in(tmp_path, keep=2)
    ids = [
        whale.run(topology_of(lambda row: {"km": row.km}), settings=settings).id for _ in range(4)
    ]
    # The newest is made before the oldest is looked for again, so it comes on top.
    assert {folder.name for folder in RunFolders(settings.records).all()} == set(ids[1:])


def test_a_run_of_another_host_with_the_same_home_stays_while_it_writes(tmp_path):
    settings = settings_in(tmp_path, keep=0)
    for name, age_s in (("there", 60), ("killed-there", 7_300)):
        (tmp_path / name).mkdir()
        identity = {"pid": 1, "process_started_s": 2.5, "boot_id": "of another host"}
        described = {"id": name, **identity}
        for file, content in (("job.json", described), ("now.json", {"at_s": 1})):
            (tmp_path / name / file).write_text(json.dumps(content))
            written_s = time.time() - age_s
            os.utime(tmp_path / name / file, (written_s, written_s))
    RunFolders(settings.records).remove_oldest()
    assert [folder.name for folder in tmp_path.iterdir()] == ["there"]


def test_a_folder_of_another_program_is_not_removed(tmp_path):
    for name, described in (("theirs", '{"queue": 1}'), ("no-json", "queue: 1"), ("list", "[]")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "job.json").write_text(described)
        os.utime(tmp_path / name / "job.json", (1, 1))
    settings = settings_in(tmp_path, keep=0)
    whale.run(topology_of(lambda row: {"km": row.km}), settings=settings)
    assert {"theirs", "no-json", "list"} < {folder.name for folder in tmp_path.iterdir()}


def test_a_folder_of_another_program_takes_no_place_of_a_run(tmp_path):
    settings = settings_in(tmp_path, keep=1)
    first = whale.run(topology_of(lambda row: {"km": row.km}), settings=settings)
    os.utime(tmp_path / first.id / "job.json", (1, 1))
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "job.json").write_text('{"queue": 1}')
    os.utime(tmp_path / "theirs" / "job.json", (2, 2))
    whale.run(topology_of(lambda row: {"km": row.km}), settings=settings)
    assert (tmp_path / first.id / "job.json").exists()


def test_a_job_in_virtual_time_or_without_an_interval_is_not_recorded(tmp_path):
    for settings, clock in (
        (settings_in(tmp_path), VirtualClock()),
        (settings_in(tmp_path, interval_ms=0), None),
    ):
        whale.run(topology_of(lambda row: {"km": row.km}), settings=settings, clock=clock)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_harms_no_job(tmp_path, caplog):
    (tmp_path / "file").write_text("not a folder")
    settings = settings_in(tmp_path / "file" / "runs")
    job = whale.run(topology_of(lambda row: {"km": row.km}), settings=settings)
    assert job.state == "finished"
    assert "is not recorded any more" in caplog.text
    assert caplog.messages[-1].endswith("; name a folder with records.folder")


def test_a_long_run_keeps_its_whole_history_with_fewer_samples(tmp_path):
    """Twice as far apart each time that there would be too many."""
    from whale_ray.metrics.job_metrics import JobMetrics
    from whale_ray.plan.assignment import Assignment
    from whale_ray.plan.planner import plan
    from whale_ray.records.recorder import RunRecorder
    from whale_ray.records.sampling import JobView

    settings = settings_in(tmp_path, samples_max=10)
    topology = topology_of(lambda row: {"km": row.km})
    physical = plan(topology.logical_plan(), settings, 1)
    clock = VirtualClock()
    recorder = RunRecorder(Assignment("long-run", physical, settings), clock)
    recorder.begin()
    view = JobView("running", JobMetrics((), 0.0, 0), {}, {}, {}, {})
    for _ in range(100):
        clock.sleep_ns(1_000_000_000)
        recorder.record(view)
    lines = (tmp_path / "long-run" / "history.jsonl").read_text().splitlines()
    seconds = [json.loads(line)["s"] for line in lines]
    assert 5 <= len(seconds) < 10
    gaps = {round(after - before) for before, after in itertools.pairwise(seconds)}
    assert gaps == {16}
    assert seconds[0] == pytest.approx(16) and seconds[-1] == pytest.approx(96)


def test_a_job_that_ends_before_its_second_sample_has_counters_in_its_history(tmp_path):
    settings = settings_in(tmp_path, interval_ms=3_600_000)
    whale.run(topology_of(lambda row: {"km": row.km}), settings=settings)
    (folder,) = RunFolders(settings.records).all()
    first, last = map(json.loads, (folder / "history.jsonl").read_text().splitlines())
    assert first["operators"] == [None, None, None]
    assert all(counters is not None for counters in last["operators"])


def test_a_worker_that_does_not_move_is_silent_until_it_moves_again(tmp_path):
    """It tells no counters, as before the first of them; or a turn of its loop goes on."""
    from whale_ray.metrics.counters import MemberCounters
    from whale_ray.metrics.job_metrics import JobMetrics
    from whale_ray.plan.assignment import Assignment
    from whale_ray.plan.planner import plan
    from whale_ray.records.recorder import RunRecorder
    from whale_ray.records.sampling import JobView

    settings = settings_in(tmp_path, interval_ms=1000)
    topology = topology_of(lambda row: {"km": row.km})
    physical = plan(topology.logical_plan(), settings, 1)
    clock = VirtualClock()
    recorder = RunRecorder(Assignment("silent-run", physical, settings), clock)
    recorder.begin()
    shown = []
    times_ns = (None, None, None, None, None, None, None, 1, 2, 2, 2, 2, 2, 2, 2, 3, 4, 5)
    for snapshot_ns in times_ns:  # one sample a second
        clock.sleep_ns(1_000_000_000)
        turn_ns = 7_000_000_000 if snapshot_ns == 4 else 0
        newest = {0: MemberCounters(0, snapshot_ns, 0, turn_ns=turn_ns)} if snapshot_ns else {}
        recorder.record(JobView("running", JobMetrics((), 0.0, 0), newest, {}, {}, {}))
        shown.append(read(tmp_path / "silent-run", "now.json")["members"][0]["silent_s"])
    assert shown == [0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0, 6, 0, 7, 0]


def test_another_process_can_ask_a_job_to_end(tmp_path):
    settings = settings_in(tmp_path / "runs", interval_ms=10)
    topology = whale.Topology("endless")
    source = topology.source(ListSource([{"n": 1}], bounded=False), id="rows")
    source.sink(whale.sinks.parquet(str(tmp_path / "out")), id="out")
    job = whale.submit(topology, on="processes", workers=1, settings=settings)
    folder = tmp_path / "runs" / job.id
    until_s = time.monotonic() + 60
    while not (folder / "job.json").exists() and time.monotonic() < until_s:
        threading.Event().wait(0.01)
    replace_json(folder / REQUEST, {"end": "drain"})
    assert job.wait(timeout_s=120).state == "drained"
    assert not (folder / REQUEST).exists()
    assert read(folder, "now.json")["end"]["state"] == "drained"


@pytest.mark.parametrize("name", ["../../etc", "a/b", "", ".", "Job", "x" * 65])
def test_what_is_no_job_id_names_no_folder(tmp_path, name):
    assert RunFolders(RecordSettings(folder=str(tmp_path))).of(name) is None


def test_latencies_since_an_earlier_moment_leave_out_those_before():
    histogram, earlier = LatencyHistogram(), LatencyHistogram()
    for counted in (histogram, earlier):
        counted.add(1_000_000, 1000)
    histogram.add(64_000_000, 10)
    assert histogram.quantile_ms(0.5) == pytest.approx(1, rel=0.05)
    assert histogram.since(earlier).quantile_ms(0.5) == pytest.approx(64, rel=0.05)
