"""The endpoint for Prometheus: what it serves, of real jobs too; ports; clients that misbehave."""

from __future__ import annotations

import socket
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families as plain_text

import whale_ray as whale
from tests.whale_ray.metrics.full_job import full_status
from tests.whale_ray.user_code.gated_numbers import Counted, GatedNumbers, kill_worker_once
from whale_ray.cli.main import main
from whale_ray.configs.errors import ResourceError
from whale_ray.control.job_states import ALIVE
from whale_ray.metrics.export import prometheus
from whale_ray.metrics.export.prometheus import PrometheusEndpoint
from whale_ray.metrics.export.reader import Buckets, JobReader
from whale_ray.transport.clock import SystemClock

HOST = "127.0.0.1"

Series = tuple[str, tuple[tuple[str, str], ...]]


def until(true: Callable[[], bool]) -> None:
    clock = SystemClock()
    limit_ns = clock.monotonic_ns() + 100 * 10**9
    while not true():
        assert clock.monotonic_ns() < limit_ns
        clock.sleep_ns(20_000_000)


@pytest.fixture
def port() -> int:
    with socket.create_server((HOST, 0)) as free:
        return int(free.getsockname()[1])


@pytest.fixture
def endpoint(port: int) -> Iterator[PrometheusEndpoint]:
    served = PrometheusEndpoint(JobReader("total-1", "total", full_status), HOST, port)
    yield served
    served.close()


def get(port: int, accept: str = "text/plain") -> str:
    asked = urllib.request.Request(f"http://{HOST}:{port}/metrics", headers={"Accept": accept})
    with urllib.request.urlopen(asked, timeout=60) as answer:
        return str(answer.read().decode())


def scraped(port: int) -> dict[Series, float]:
    """Return every sample by its name and labels; none if nobody answers."""
    try:
        text = get(port)
    except OSError:
        return {}
    return {
        (one.name, tuple(sorted(one.labels.items()))): one.value
        for family in plain_text(text)
        for one in family.samples
    }


def total(port: int, name: str, operator: str) -> float:
    """Return the sum of a metric's series; of an operator's, unless that is empty."""
    return sum(
        value
        for (found, labels), value in scraped(port).items()
        if found == name and (not operator or ("operator", operator) in labels)
    )


@pytest.mark.usefixtures("endpoint")
@pytest.mark.parametrize(
    ("accept", "parse"),
    [("text/plain", plain_text), ("application/openmetrics-text", open_metrics)],
)
def test_what_is_served_is_what_is_read(
    port: int, accept: str, parse: Callable[[str], Iterable[Metric]]
) -> None:
    served = {
        (one.name, frozenset(one.labels.items())): one.value
        for family in parse(get(port, accept))
        for one in family.samples
    }
    for family in JobReader("total-1", "total", full_status).read():
        for values, sample in family.samples.items():
            labels = frozenset(zip(family.labels, values, strict=True))
            if isinstance(sample, Buckets):
                assert served[f"{family.metric.name}_count", labels] == sample.count
                assert served[f"{family.metric.name}_sum", labels] == sample.sum_s
                assert served[f"{family.metric.name}_bucket", labels | {("le", "0.025")}] == 10_000
                assert served[f"{family.metric.name}_bucket", labels | {("le", "0.01")}] == 0
            else:
                assert served[family.metric.name, labels] == sample


def test_it_is_served_to_this_machine_alone(endpoint: PrometheusEndpoint, port: int) -> None:
    listening = endpoint._server.socket.getsockname()
    assert listening == (HOST, port)
    assert whale.Settings().metrics.prometheus_host == HOST


@pytest.mark.usefixtures("endpoint")
def test_a_port_in_use_is_one_line(tmp_path: Path, port: int) -> None:
    expected = (
        f"metrics cannot be served at port {port} of {HOST}: it is in use; name another with "
        "--metrics-port or metrics.prometheus_port (the address is metrics.prometheus_host)"
    )
    with pytest.raises(ResourceError) as raised:
        PrometheusEndpoint(JobReader("b", "b", full_status), HOST, port)
    assert str(raised.value) == expected
    with pytest.raises(ResourceError) as raised:
        whale.run(gated(tmp_path), settings={"metrics.prometheus_port": port})
    assert str(raised.value) == expected


def test_an_address_of_another_machine_is_one_line(port: int) -> None:
    with pytest.raises(ResourceError, match="the address is not one of this machine; name another"):
        PrometheusEndpoint(JobReader("b", "b", full_status), "192.0.2.1", port)


def test_a_closed_endpoint_gives_its_port_back(port: int) -> None:
    for _ in range(2):
        served = PrometheusEndpoint(JobReader("a", "a", full_status), HOST, port)
        assert "whale_ray_build_info" in get(port)
        served.close()
        with pytest.raises(OSError, match="refused"):
            socket.create_connection((HOST, port), timeout=5)


def test_a_client_that_says_nothing_is_cut_off(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus, "_CLIENT_TIMEOUT_S", 0.1)
    served = PrometheusEndpoint(JobReader("a", "a", full_status), HOST, port)
    with socket.create_connection((HOST, port), timeout=60) as silent:
        assert "whale_ray_build_info" in get(port)  # asked later, and answered
        assert silent.recv(1) == b""
    served.close()


# --- jobs ---


def gated(folder: Path, kill_at: int = -1) -> whale.Topology:
    """Count 2,000 numbers by key, the last 1,000 once `go` is there; a worker may die at one."""
    killed = folder / "killed"
    topology = whale.Topology("watched")
    numbers = topology.source(GatedNumbers(2000, 1000, folder / "go"), id="numbers")
    kept = numbers.map(
        lambda row: {"number": kill_worker_once(row.number, kill_at, killed), "key": row.key},
        id="kept",
        schema={"number": "int64", "key": "int64"},
    )
    counted = kept.key_by("key").process(Counted, id="count", parallelism=2)
    counted.sink(whale.sinks.csv(str(folder / "out")), id="out")
    return topology


def test_a_running_job_is_read_while_it_runs(tmp_path: Path, port: int) -> None:
    settings = {"metrics.prometheus_port": port, "runtime.poll_interval_ms": 20}
    job = whale.submit(gated(tmp_path), on="processes", workers=2, settings=settings)
    try:
        until(lambda: total(port, "whale_ray_operator_rows_in_total", "out") == 1000)
        assert total(port, "whale_ray_operator_rows_out_total", "numbers") == 1000
        until(lambda: total(port, "whale_ray_sink_latency_seconds_count", "out") == 1000)
        (tmp_path / "go").touch()
        job.wait(100)
    finally:
        job.stop(drain=False)
    with pytest.raises(OSError, match="refused"):
        get(port)


def test_no_counter_falls_when_a_job_goes_on_from_a_checkpoint(tmp_path: Path, port: int) -> None:
    settings = {
        "metrics.prometheus_port": port,
        "runtime.poll_interval_ms": 20,
        "checkpoints.interval_ms": 50,
        "runtime.source_batch_rows": 50,
    }
    job = whale.submit(
        gated(tmp_path, kill_at=1500),
        on="processes",
        workers=2,
        settings=settings,
        checkpoints=tmp_path / "kept",
    )
    seen: list[dict[Series, float]] = []

    def ended() -> bool:
        seen.append(counters(port))
        if total(port, "whale_ray_checkpoints_total", "") > 1:
            (tmp_path / "go").touch()
        return job.state not in ALIVE

    try:
        until(ended)
    finally:
        job.stop(drain=False)
    assert job.outcome().restarts == 1
    last: dict[Series, float] = {}
    for found in seen:
        fallen = [one for one, value in found.items() if value < last.get(one, 0.0)]
        assert not fallen
        last.update(found)
    assert job.metrics().operator("out").rows_in == 2000
    assert sum(value for (name, _), value in last.items() if name.endswith("rows_in_total")) > 4000


def counters(port: int) -> dict[Series, float]:
    return {one: value for one, value in scraped(port).items() if one[0].endswith("_total")}


def test_the_command_says_where_the_metrics_are(
    tmp_path: Path, port: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(
        "import whale_ray as whale\n"
        "topology = whale.Topology('mine')\n"
        "rows = topology.source(whale.sources.iterable([{'n': 1}]), id='rows')\n"
        "rows.sink(whale.sinks.collect(), id='out')\n"
    )
    words = ["run", "mine.py", "--on", "inline", "--metrics-port", str(port)]
    assert main(words) == 0
    told = f"metrics for Prometheus: http://{HOST}:{port}/metrics"
    assert told in capsys.readouterr().err.splitlines()
    with socket.create_server((HOST, port)):
        assert main(words) == 1
        said = capsys.readouterr().err.splitlines()
        assert said[-1].startswith(
            f"whale-ray: metrics cannot be served at port {port} of {HOST}: "
        )
    assert main([*words[:-1], "65536"]) == 2
    assert capsys.readouterr().err == (
        "whale-ray: --metrics-port must lie between 0 and 65,535, not 65,536\n"
    )
