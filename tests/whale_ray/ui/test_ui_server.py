"""The page's server over real HTTP: what it tells of real jobs, and what it refuses."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
import requests
from aiohttp import web

import whale_ray as whale
from tests.whale_ray.api.test_checkpoints import (
    COUNT,
    GATE,
    OFTEN,
    checkpoints_of,
    numbers,
    until,
    visible,
)
from tests.whale_ray.user_code.gated_numbers import expected
from whale_ray.cli.main import main
from whale_ray.configs.errors import InputError, ResourceError, UserFunctionError
from whale_ray.configs.settings import RecordSettings, Settings
from whale_ray.records.folders import DESCRIPTION, REQUEST
from whale_ray.transport.clock import SystemClock
from whale_ray.tspec.specification import TopologySpec
from whale_ray.ui import actions
from whale_ray.ui import server as ui_server
from whale_ray.ui.run_reader import RunReader
from whale_ray.ui.server import LOOPBACK, TOKEN_HEADER, UiServer

TOKEN = "a-token"
TIMEOUT_S = 60
TSPEC = """\
tspec: 1
topology: played
operators:
  trips: {source: simulated, rate_per_s: 1000, rows: 3000, row_bytes: 24, dop: 1}
  fares:
    process: simulated
    inputs: [{from: trips, grouping: shuffle}]
    ppt_us: 1500
    row_bytes: 24
  out: {sink: simulated, inputs: [{from: fares}], ppt_us: 0}
"""


class Served:
    """A server at a free port of the loopback, in a thread."""

    def __init__(self, folder: Path, static: Path) -> None:
        self.settings = RecordSettings(folder=str(folder))
        self.static = static
        self._loop = asyncio.new_event_loop()
        self._began = threading.Event()
        self._end: asyncio.Event | None = None
        self.url = ""
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._run(),))
        self._thread.start()
        assert self._began.wait(TIMEOUT_S)

    async def _run(self) -> None:
        server = UiServer(self.settings, SystemClock(), TOKEN, self.static)
        runner = web.AppRunner(server.application(), shutdown_timeout=1)
        await runner.setup()
        await web.TCPSite(runner, LOOPBACK, 0).start()
        self.url = f"http://{LOOPBACK}:{runner.addresses[0][1]}"
        self._end = asyncio.Event()
        self._began.set()
        await self._end.wait()
        await runner.cleanup()

    def close(self) -> None:
        assert self._end is not None
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(TIMEOUT_S)
        self._loop.close()

    def get(self, path: str, **more: Any) -> requests.Response:
        return requests.get(self.url + path, timeout=TIMEOUT_S, **more)

    def post(
        self, path: str, body: str | bytes, token: str | None = None, **headers: str
    ) -> requests.Response:
        headers |= {} if token is None else {TOKEN_HEADER: token}
        return requests.post(self.url + path, body, headers=headers, timeout=TIMEOUT_S)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    static = tmp_path / "static"
    (static / "assets").mkdir(parents=True)
    (static / "index.html").write_text("<!doctype html><title>whale-ray</title>")
    served = Served(tmp_path / "runs", static)
    yield served
    served.close()


def run_job(served: Served, function: Any = lambda row: {"n": row.n}) -> str:
    topology = whale.Topology("watched")
    rows = topology.source(whale.sources.iterable([{"n": n} for n in range(50)]), id="rows")
    rows.map(function, id="mapped").sink(whale.sinks.collect(), id="out")
    settings = Settings().with_overrides({"records.folder": served.settings.folder})
    try:
        return whale.run(topology, settings=settings).id
    except UserFunctionError:
        (job,) = served.get("/api/jobs").json()
        return str(job["id"])


@pytest.mark.parametrize("path", ["/assets/", "/assets/deep/", "/api/jobs/"])
@pytest.mark.parametrize("name", [300 * "x", 200 * "%C3%A4", "%00", "none.js", 5000 * "x"])
def test_a_name_that_no_file_has_is_not_found(served, path, name):
    answer = served.get(path + name)
    assert answer.status_code == 404
    assert answer.headers["X-Content-Type-Options"] == "nosniff"


def test_a_submitted_text_is_parsed_while_others_are_answered(served, monkeypatch):
    """The parsing goes on until another request was answered."""
    begun, answered = threading.Event(), threading.Event()

    def parse(text: str, where: str) -> TopologySpec:
        begun.set()
        assert answered.wait(TIMEOUT_S)
        raise InputError(f"{where}: {text} is none")

    monkeypatch.setattr(actions, "parse_tspec", parse)
    with ThreadPoolExecutor() as threads:
        asked = threads.submit(served.post, "/api/submissions", '{"text": "it"}', TOKEN)
        assert begun.wait(TIMEOUT_S)
        assert served.get("/api/submissions").json() == []
        answered.set()
        assert asked.result().json() == {"error": "the topology: it is none"}


def test_without_a_job_the_list_is_empty(served):
    assert served.get("/api/jobs").json() == []


def test_a_job_is_listed_and_told_with_its_history(served):
    job_id = run_job(served)
    (listed,) = served.get("/api/jobs").json()
    assert (listed["id"], listed["state"], listed["alive"]) == (job_id, "finished", False)
    assert (listed["rows_in"], listed["error"]) == (50, "")
    told = served.get(f"/api/jobs/{job_id}").json()
    assert [one["id"] for one in told["job"]["operators"]] == ["rows", "mapped", "out"]
    assert [one["rows_out"] for one in told["now"]["operators"]] == [50, 50, 50]


def test_events_tell_what_is_new(served):
    """The list when it changes; of a job its samples and the lines of its history."""
    job_id = run_job(served)
    with served.get("/api/events", stream=True) as events:
        lines = events.iter_lines(decode_unicode=True)
        assert next(lines) == "event: jobs"
        assert [one["id"] for one in json.loads(next(lines)[6:])] == [job_id]
    with served.get(f"/api/jobs/{job_id}/events", stream=True) as events:
        lines = events.iter_lines(decode_unicode=True)
        assert next(lines) == "event: now"
        assert json.loads(next(lines)[6:])["end"]["state"] == "finished"


def test_a_job_whose_process_is_gone_is_lost(served):
    job_id = run_job(served)
    folder = Path(served.settings.folder) / job_id
    (folder / "now.json").unlink()
    described = json.loads((folder / DESCRIPTION).read_text())
    described["process_started_s"] -= 1000  # the process' number was taken by another
    (folder / DESCRIPTION).write_text(json.dumps(described))
    (listed,) = served.get("/api/jobs").json()
    assert (listed["state"], listed["alive"]) == ("lost", False)


def test_a_job_that_has_written_no_sample_yet_starts(served):
    """One that hangs before its first sample is said to be silent, as any other."""
    folder = Path(served.settings.folder) / run_job(served)
    (folder / "now.json").unlink()
    described = json.loads((folder / DESCRIPTION).read_text())
    (folder / DESCRIPTION).write_text(json.dumps({**described, "began_s": time.time() - 3600}))
    (listed,) = served.get("/api/jobs").json()
    assert (listed["state"], listed["alive"], listed["rows_in"]) == ("starting", True, 0)
    assert listed["silent_s"] >= 3600
    assert served.get(f"/api/jobs/{folder.name}").json()["now"]["operators"] == []


def test_a_job_that_writes_nothing_is_said_to_be_silent():
    class Later(SystemClock):
        def wall_ns(self) -> int:
            return 100_000_000_000

    reader = RunReader(ui_server.RunFolders(RecordSettings()), Later(), 1000)
    assert reader.silent_s({"end": None, "wall_s": 97.0}) == 0
    assert reader.silent_s({"end": None, "wall_s": 40.0}) == 60
    assert reader.silent_s({"end": {}, "wall_s": 40.0}) == 0
    assert reader.silent_s({"end": None, "wall_s": 4000.0}) == 0  # the clock was put back


def test_a_damaged_or_half_written_run_harms_no_other(served):
    job_id = run_job(served)
    for name, text in (("half", "{"), ("foreign", "[]")):
        folder = Path(served.settings.folder) / name
        folder.mkdir()
        (folder / DESCRIPTION).write_text(text)
    assert [one["id"] for one in served.get("/api/jobs").json()] == [job_id]


def test_everything_is_sent_with_headers_that_forbid_foreign_script(served):
    for path in ("/", "/api/jobs", "/api/jobs/none", "/nowhere"):
        headers = served.get(path).headers
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "script-src 'self'" in policy
        assert "unsafe" not in policy
        assert headers["X-Content-Type-Options"] == "nosniff"


def test_a_hostile_row_is_told_as_json_text(served):
    def fail(row):
        raise ValueError("<img src=x onerror=alert(1)>")

    job_id = run_job(served, fail)
    answer = served.get(f"/api/jobs/{job_id}")
    assert answer.headers["Content-Type"].startswith("application/json")
    assert "<img src=x onerror=alert(1)>" in answer.json()["now"]["end"]["traceback"]


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8267", "169.254.1.1", "0.0.0.0", "a@127.0.0.1", "[::1", "\xff"],
)
def test_a_request_to_another_name_is_refused(served, host):
    """A stranger's page can let its own name lead to the loopback (DNS rebinding)."""
    answer = served.get("/api/jobs", headers={"Host": host})
    assert answer.status_code == 403
    assert answer.json()["error"].startswith("this page is at 127.0.0.1 alone, not at ")


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:1", "\xff"])
def test_the_script_of_another_page_is_refused(served, origin):
    """A browser sends it without asking, though the other page cannot read the answer."""
    own = served.post("/api/topology", TSPEC, Origin=served.url)
    assert own.status_code == 200
    for path in ("/api/topology", "/api/jobs/any-0/end"):
        answer = served.post(path, TSPEC, TOKEN, Origin=origin)
        assert answer.status_code == 403
        assert answer.json()["error"].startswith("only this page may ask")
    assert served.get("/api/events", headers={"Origin": origin}, stream=True).status_code == 403


@pytest.mark.parametrize("token", [None, "", "another", TOKEN + "x", "\xff"])
def test_an_action_without_the_token_is_refused(served, token):
    job_id = run_job(served)
    for path in (f"/api/jobs/{job_id}/end", f"/api/jobs/{job_id}/rescale", "/api/submissions"):
        answer = served.post(path, "{}", token)
        assert answer.status_code == 403 and "token" in answer.json()["error"]
    assert not (Path(served.settings.folder) / job_id / REQUEST).exists()


def test_a_job_that_has_ended_cannot_be_ended(served):
    job_id = run_job(served)
    answer = served.post(f"/api/jobs/{job_id}/end", '{"how": "drain"}', TOKEN)
    assert (answer.status_code, answer.json()) == (400, {"error": f"job {job_id} has ended"})
    answer = served.post(f"/api/jobs/{job_id}/end", '{"how": "quickly"}', TOKEN)
    assert answer.json()["error"].startswith("a job cannot end by 'quickly'")


def gated_job(served: Served, folder: Path) -> whale.Job:
    """Start a job that keeps state by key, and waits in its middle for the file `go`."""
    return whale.submit(
        numbers(folder),
        on="processes",
        workers=2,
        checkpoints=folder / "state",
        settings={"records.folder": served.settings.folder, "records.interval_ms": 50},
        **OFTEN,
    )


@pytest.mark.long
def test_a_job_is_rescaled_and_each_row_comes_once(served, tmp_path, no_leaks):
    """It stops with a savepoint, and goes on with other instances and workers as another job."""
    job = gated_job(served, tmp_path)
    until(lambda: visible(tmp_path) == expected(GATE), "the first half is not visible")
    wanted = '{"parallelism": {"counted": 3}, "workers": 1}'
    answer = served.post(f"/api/jobs/{job.id}/rescale", wanted, TOKEN)
    assert (answer.status_code, answer.json()) == (200, {})
    job.wait(TIMEOUT_S)
    assert job.state == "stopped"
    until(lambda: len(served.get("/api/jobs").json()) == 2, "no job goes on")
    (tmp_path / "go").touch()
    new = served.get("/api/jobs").json()[0]
    assert (new["name"], new["workers"]) == ("numbers", 1)
    stages = served.get(f"/api/jobs/{new['id']}").json()["job"]["stages"]
    assert {one["parallelism"] for one in stages if "counted" in one["operators"]} == {3}
    until(lambda: visible(tmp_path) == expected(COUNT), "the other half is not visible")
    ended = f"{job.id}: ended with exit code 0"
    until(lambda: ended in served.get("/api/submissions").json(), "it has not ended")


def test_what_cannot_be_rescaled_is_refused_and_runs_on(served, tmp_path, no_leaks):
    job = gated_job(served, tmp_path)
    until(lambda: checkpoints_of(job) > 0, "there is no checkpoint")

    def refusal(wanted: str) -> str:
        answer = served.post(f"/api/jobs/{job.id}/rescale", wanted, TOKEN)
        assert answer.status_code == 400
        return str(answer.json()["error"])

    assert "no operator 'other'" in refusal('{"parallelism": {"other": 2}}')
    assert "whole numbers, 1 or more" in refusal('{"parallelism": {"counted": 0}}')
    assert "whole numbers, 1 or more" in refusal('{"parallelism": {"counted": true}}')
    assert "workers must be a number from 1" in refusal('{"workers": 1e9}')
    assert "nothing is to change" in refusal("{}")
    assert job.state == "running"
    job.stop(drain=False)


def test_a_job_without_checkpoints_cannot_be_rescaled(served):
    answer = served.post(f"/api/jobs/{run_job(served)}/rescale", '{"workers": 3}', TOKEN)
    assert "takes no checkpoints, so it cannot go on" in answer.json()["error"]


@pytest.mark.parametrize("path", ["/assets/../../server.py", "/assets/%2e%2e/%2e%2e/server.py"])
def test_files_outside_the_page_are_not_served(served, path):
    async def fetch() -> int:
        async with aiohttp.ClientSession() as session:
            from yarl import URL

            async with session.get(URL(served.url + path, encoded=True)) as answer:
                return answer.status

    assert asyncio.run(fetch()) in (403, 404)


def test_a_topology_is_drawn_and_optimized(served):
    drawn = served.post("/api/topology", TSPEC).json()
    assert [one["id"] for one in drawn["operators"]] == ["trips", "fares", "out"]
    assert drawn["edges"][0] == {"source": "trips", "target": "fares", "grouping": "shuffle"}
    found = served.post("/api/optimization", TSPEC).json()
    # 1,000 rows per second of 1.5 ms each need more than one instance (equation 2).
    assert found["steps"][-1]["choices"]["fares"]["dop"] == 2
    again = served.post("/api/optimizer-log", found["log"]).json()
    assert again["steps"] == found["steps"]


def test_numbers_that_json_has_not_are_null(served):
    feed = "ppt_us: 0, fan_out: 0, row_bytes: 8, inputs: [{grouping: shuffle, from: "
    text = (
        "tspec: 1\ntopology: dry\noperators:\n"
        "  s: {source: simulated, dop: 1, row_bytes: 8, rate_per_s: 9}\n"
        f"  a: {{process: simulated, {feed}s}}]}}\n  b: {{process: simulated, {feed}a}}]}}\n"
        "  o: {sink: simulated, ppt_us: 0, inputs: [{from: b, grouping: shuffle}]}\n"
    )
    found = served.post("/api/optimization", text).json()
    again = served.post("/api/optimizer-log", found["log"]).json()
    assert again["steps"] == found["steps"]
    assert None in [one["numbers"].get("l_i_ns", 0) for one in found["steps"]]


@pytest.mark.parametrize(
    ("path", "text", "message"),
    [
        ("/api/topology", TSPEC.replace("ppt_us: 1500", "ppt_uss: 1"), "line 8: unknown field"),
        ("/api/topology", "", "the topology: the file is empty"),
        ("/api/topology", b"\xff", "expected text in UTF-8"),
        ("/api/optimizer-log", "steps: 1", "not the log of an optimization"),
        ("/api/topology", "tspec: 2026-13-45\ntopology: t\noperators: {}", "line 1: a value makes"),
        (
            "/api/optimizer-log",
            "tspec-opt: 1\ntopology: t\nsteps:\n- {operator: s, decides: dop, value: .nan,"
            " formula: f, numbers: {}, reason: r}",
            "nan is no number",
        ),
        ("/api/optimizer-log", "[" * 100_000, "not the log of an optimization"),
        ("/api/submissions", "[" * 100_000, "expected JSON"),
    ],
)
def test_a_mistake_in_a_text_is_one_line(served, path, text, message):
    answer = served.post(path, text, TOKEN)
    assert answer.status_code == 400
    assert message in answer.json()["error"] and "\n" not in answer.json()["error"]


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/api/topology", "drawn_topology"),
        ("/api/optimization", "optimized"),
        ("/api/optimizer-log", "drawn_log"),
    ],
)
def test_a_text_that_takes_long_keeps_no_other_viewer_waiting(served, monkeypatch, path, name):
    def list_jobs(_text):
        return requests.get(f"{served.url}/api/jobs", timeout=5).json()

    monkeypatch.setattr(ui_server.specs, name, list_jobs)
    answer = served.post(path, "any")
    assert (answer.status_code, answer.json()) == (200, [])


def test_a_text_that_is_too_large_is_refused(served):
    assert served.post("/api/topology", "x" * 2_000_000).status_code == 413


def test_a_port_in_use_is_one_line(served, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(UiServer.__init__, "__defaults__", (served.static,))
    port = served.url.rpartition(":")[2]
    assert main(["ui", "--port", port, "--folder", str(tmp_path)]) == 1
    assert capsys.readouterr().err == (
        f"whale-ray: port {port} is in use: name another with --port, or --port 0\n"
    )


def test_a_job_shows_its_page(served, monkeypatch):
    """`job.ui()`: served by this process; a notebook shows it in a frame, without the token."""
    monkeypatch.setattr(UiServer.__init__, "__defaults__", (served.static,))
    monkeypatch.setenv("WHALE_RAY_RECORDS__FOLDER", served.settings.folder)
    topology = whale.Topology("shown")
    rows = topology.source(whale.sources.iterable([{"n": 1}]), id="rows")
    rows.sink(whale.sinks.collect(), id="out")
    job = whale.run(topology)
    link = job.ui()
    base = link.url.partition("#")[0]
    assert [one["id"] for one in requests.get(f"{base}api/jobs", timeout=60).json()] == [job.id]
    assert job.id in link.url and "token" not in link._repr_html_()
    port = urlsplit(base).port
    for told in (repr(link), link._repr_html_()):  # both tell how to reach it from elsewhere
        assert base in told and f"ssh -L {port}:127.0.0.1:{port} " in told
    assert job.ui().url == link.url  # no second server


def test_a_page_that_was_not_built_is_one_line(tmp_path):
    with pytest.raises(ResourceError, match=r"the page is not built: .* run `make ui`"):
        UiServer(RecordSettings(folder=str(tmp_path)), SystemClock(), TOKEN, tmp_path)
