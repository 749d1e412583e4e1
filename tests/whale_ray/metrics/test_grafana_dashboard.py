"""The dashboard for Grafana: every metric is shown; every query is answered by a real Prometheus.

Prometheus reads a real job, and a target in which nothing is missing, whose rows grow with the
clock. Debian's package `prometheus` has it, and promtool, which knows the conventions of names.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import socket
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import whale_ray as whale
from tests.whale_ray.metrics.full_job import ROWS_PER_S, full_status
from tests.whale_ray.user_code.gated_numbers import GatedNumbers
from whale_ray.metrics.export.catalogue import CATALOGUE
from whale_ray.metrics.export.grafana import dashboard
from whale_ray.metrics.export.metric import Kind
from whale_ray.metrics.export.prometheus import PrometheusEndpoint
from whale_ray.metrics.export.reader import JobReader
from whale_ray.transport.clock import SystemClock

METRICS = [metric for group in CATALOGUE for metric in group.metrics]
PANELS = [panel for panel in dashboard()["panels"] if panel["type"] != "row"]
QUERIES = [(panel["title"], target["expr"]) for panel in PANELS for target in panel["targets"]]
SCRAPE_S = 0.5
FULL = "full-1"


# --- without Prometheus ---


def test_every_metric_is_on_the_dashboard_and_nothing_else() -> None:
    shown = {
        name for _, query in QUERIES for name in re.findall(r"\$\{namespace\}(_[a-z0-9_]+)", query)
    }
    parts = ("_bucket", "_count", "_sum")
    latency = "_sink_latency_seconds"
    assert {f"{latency}{part}" for part in parts} <= shown
    shown = {latency if one.startswith(latency) else one for one in shown}
    assert shown == {metric.name.removeprefix("whale_ray") for metric in METRICS}


def test_panels_lie_side_by_side_and_have_titles_of_their_own() -> None:
    everything = dashboard()["panels"]
    assert len({panel["id"] for panel in everything}) == len(everything)
    titles = [panel["title"] for panel in PANELS]
    assert len(set(titles)) == len(titles)
    taken = set()
    for panel in everything:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken
        taken |= cells


def test_counters_are_shown_as_rates() -> None:
    for metric in METRICS:
        if metric.kind is Kind.COUNTER:
            rate = rf"(rate|increase)\(\S*{metric.name.removeprefix('whale_ray')}\{{"
            assert any(re.search(rate, query) for _, query in QUERIES), metric.name


# --- with a real Prometheus ---


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


class Prometheus:
    """A server of Prometheus that reads some ports of this machine twice a second."""

    def __init__(self, folder: Path, ports: list[int]) -> None:
        self._url = f"http://127.0.0.1:{(port := free_port())}"
        targets = [f"127.0.0.1:{one}" for one in ports]
        jobs = [{"job_name": "whale-ray", "static_configs": [{"targets": targets}]}]
        interval = {"scrape_interval": f"{SCRAPE_S * 1000:.0f}ms"}
        config = folder / "prometheus.yml"
        config.write_text(json.dumps({"global": interval, "scrape_configs": jobs}))  # YAML, too
        words = ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder}/data"]
        self._process = subprocess.Popen(
            [*words, f"--web.listen-address=127.0.0.1:{port}"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def ask(self, path: str, **arguments: str) -> Any:
        url = f"{self._url}/api/v1/{path}?{urllib.parse.urlencode(arguments)}"
        with urllib.request.urlopen(url, timeout=60) as answer:
            told = json.load(answer)
        assert told["status"] == "success"
        return told["data"]

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Return the present series of an expression."""
        result = self.ask("query", query=expression)["result"]
        return [(one["metric"], float(one["value"][1])) for one in result]

    def answer(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Return the series of an expression once there is one: a late reading ends them all."""
        found: list[tuple[dict[str, str], float]] = []

        def is_there() -> bool:
            found[:] = self.query(expression)
            return bool(found)

        until(is_there)
        return found

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def until(true: Callable[[], bool]) -> None:
    clock = SystemClock()
    limit_ns = clock.monotonic_ns() + 200 * 10**9
    while not _without_error(true):
        assert clock.monotonic_ns() < limit_ns
        clock.sleep_ns(100_000_000)


def _without_error(true: Callable[[], bool]) -> bool:
    try:
        return true()
    except OSError:  # Prometheus has not begun to answer
        return False


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Return a Prometheus that has read both targets for a while."""
    if not shutil.which("prometheus"):
        pytest.skip("no prometheus: apt-get install prometheus")
    folder = tmp_path_factory.mktemp("prometheus")
    clock = SystemClock()
    begun_ns = clock.monotonic_ns()

    def seconds() -> float:
        return 1000 + (clock.monotonic_ns() - begun_ns) / 1e9

    full_port, job_port = free_port(), free_port()
    full = JobReader(FULL, "full", lambda: full_status(seconds()))
    endpoint = PrometheusEndpoint(full, "127.0.0.1", full_port)
    job = whale.submit(
        endless(folder),
        on="processes",
        workers=2,
        checkpoints=folder / "checkpoints",
        checkpoint_interval="300 milliseconds",
        settings={
            "metrics.prometheus_port": job_port,
            "runtime.hosts": 2,
            "runtime.source_batch_rows": 50,
        },
    )
    server = Prometheus(folder, [full_port, job_port])
    try:
        read = 'count_over_time(whale_ray_job_attempt{topology="full"}[1h])'
        until(lambda: [value > 12 for _, value in server.query(read)] == [True])
        ready = 'rate(whale_ray_sink_latency_seconds_count{topology="endless"}[10s])'
        until(lambda: sum(value for _, value in server.query(ready)) > 0)
        until(lambda: len(server.query('whale_ray_checkpoint_age_seconds{topology="endless"}')) > 0)
        yield server
    finally:
        server.close()
        job.stop(drain=False)
        endpoint.close()


def endless(folder: Path) -> whale.Topology:
    topology = whale.Topology("endless")
    numbers = topology.source(GatedNumbers(10**9, 10**9, folder / "never"), id="numbers")
    odd = numbers.filter(whale.col("number") % 2 == 1, id="odd")
    odd.key_by("key").map(lambda row: {"n": row.number}, id="slow", schema={"n": "int64"}).sink(
        whale.sinks.csv(str(folder / "out")), id="out"
    )
    return topology


def filled_in(expression: str, job: str = ".*") -> str:
    values = {"${namespace}": "whale_ray", "$job": job, "$operator": ".*", "$topology": ".*"}
    for name, value in {**values, "$__rate_interval": "5s"}.items():
        expression = expression.replace(name, value)
    assert "$" not in expression
    return expression


@pytest.mark.long
@pytest.mark.parametrize(("title", "expression"), QUERIES)
def test_prometheus_answers_every_query(
    prometheus: Prometheus, title: str, expression: str
) -> None:
    if title == "Links down":  # those of the complete job stand
        expression = expression.replace("== 0", "== 1")
    found = prometheus.answer(filled_in(expression, FULL))
    assert not any(math.isnan(value) for _, value in found)


@pytest.mark.long
def test_the_variables_find_topologies_jobs_and_operators(prometheus: Prometheus) -> None:
    found = {}
    for variable in dashboard()["templating"]["list"]:
        if variable["type"] == "query":
            asked = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["definition"])
            assert asked
            series = prometheus.ask("series", **{"match[]": filled_in(asked[1])})
            found[variable["name"]] = {one[asked[2]] for one in series}
    assert found["topology"] == {"full", "endless"}
    assert FULL in found["job"] and len(found["job"]) == 2
    assert {"numbers", "odd", "slow", "out", "trips", "total"} <= found["operator"]


@pytest.mark.long
def test_rates_and_quantiles_are_those_of_the_job(prometheus: Prometheus) -> None:
    queries: dict[str, list[str]] = {}
    for title, expression in QUERIES:
        queries.setdefault(title, []).append(filled_in(expression, FULL))
    (rows_in,) = queries["Rows in, a second"]
    rows = {labels["operator"]: value for labels, value in prometheus.answer(rows_in)}
    assert rows["trips"] == pytest.approx(ROWS_PER_S, rel=0.3)
    assert rows["total"] == pytest.approx(rows["trips"], rel=0.05)
    median, p99, mean = queries["Latency from source to sink"]
    for query in (median, p99):
        ((labels, latency_s),) = prometheus.answer(query)
        assert labels == {"operator": "out"} and 0.01 <= latency_s <= 0.025
    ((_, mean_s),) = prometheus.answer(mean)
    assert mean_s == pytest.approx(0.02)


@pytest.mark.long
def test_a_real_job_is_on_the_dashboard(prometheus: Prometheus) -> None:
    attempts = prometheus.answer('whale_ray_job_attempt{topology="endless"}')
    (job,) = (labels["job_id"] for labels, _ in attempts)
    wanted = {
        "State",
        "Rows in, a second",
        "Rows out, a second",
        "Latency from source to sink",
        "Processors that workers use",
        "Age of the last",
        "Sent",
        "Received",
        "Time in operators",
    }

    def answered() -> set[str]:
        queries = ((title, filled_in(expression, job)) for title, expression in QUERIES)
        return {title for title, query in queries if prometheus.query(query)}

    until(lambda: wanted <= answered())


@pytest.mark.long
def test_promtool_finds_no_fault_with_the_names() -> None:
    if not shutil.which("promtool"):
        pytest.skip("no promtool: apt-get install prometheus")
    port = free_port()
    endpoint = PrometheusEndpoint(JobReader(FULL, "full", full_status), "127.0.0.1", port)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        text = answer.read()
    endpoint.close()
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=text, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
