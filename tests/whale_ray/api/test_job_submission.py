"""`ray job submit` with a user's script, on a Ray cluster that these tests start and stop.

The cluster has ports, a folder and a token of its own; others on this machine are left alone.
"""

from __future__ import annotations

import json
import os
import random
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.whale_ray.mileage_fares import expected_fares

pytestmark = [pytest.mark.ray, pytest.mark.long]

WHALE_RAY = [sys.executable, "-m", "whale_ray.cli.main"]
USER_CODE = Path(__file__).parents[1] / "user_code"
COMMAND_TIMEOUT_S = 200
END_TIMEOUT_S = 60
NO_AGENT_YET = "No available agent to submit job"
"""What Ray answers to a job that is handed over before its agent, which gets 10 s, has started."""
PORTS = (
    "port",
    "object-manager-port",
    "node-manager-port",
    "ray-client-server-port",
    "dashboard-port",
    "dashboard-agent-listen-port",
    "dashboard-agent-grpc-port",
    "runtime-env-agent-port",
    "metrics-export-port",
)


@dataclass(frozen=True)
class Cluster:
    """A cluster of one node: its ports, its token's environment, and a user's folder."""

    ports: dict[str, int]
    environment: dict[str, str]
    folder: Path


def free_ports() -> dict[str, int]:
    """Return a free port for each purpose, outside those that Ray gives to its workers."""
    with ExitStack() as held:
        ports: list[int] = []
        while len(ports) < len(PORTS):
            port = random.randint(20_000, 32_000)  # below those that the kernel gives out
            probe = held.enter_context(socket.socket())
            try:
                probe.bind(("", port))
            except OSError:
                continue  # another program's
            ports.append(port)
        return dict(zip(PORTS, ports, strict=True))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster") / "code"
    shutil.copytree(USER_CODE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    token = folder.parent / "token"
    token.write_text(secrets.token_hex(32))
    environment = {name: value for name, value in os.environ.items() if "RAY_ADDRESS" not in name}
    environment |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
    environment["RAY_JOB_STOP_WAIT_TIME_S"] = str(END_TIMEOUT_S)  # 3 by default: too few to drain
    made = Cluster(free_ports(), environment, folder)
    # Short, since the paths of Ray's sockets may have 107 characters.
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as temporary:
        process = start(made, temporary)
        try:
            yield made
        finally:
            stop(process)


def start(cluster: Cluster, temporary: str) -> subprocess.Popen[str]:
    ports = [f"--{name}={port}" for name, port in cluster.ports.items()]
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"]
    process = subprocess.Popen(
        [*command, *ports, f"--temp-dir={temporary}", "--num-cpus=4", "--disable-usage-stats"],
        env=cluster.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        process_group=0,
    )
    assert process.stdout is not None
    seen = []
    for line in process.stdout:
        seen.append(line)
        if "block forever" in line:
            return process
    raise AssertionError("".join(seen))


def stop(process: subprocess.Popen[str]) -> None:
    """Stop a cluster: it ends what it started; what is left of its process group is killed."""
    process.terminate()
    try:
        process.communicate(timeout=END_TIMEOUT_S)
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # nothing is left
        process.wait()


def submission(cluster: Cluster, action: str, *words: str) -> list[str]:
    """Return a command of `ray job`."""
    dashboard = f"http://127.0.0.1:{cluster.ports['dashboard-port']}"
    return [
        sys.executable,
        "-m",
        "ray.scripts.scripts",
        "job",
        action,
        "--address",
        dashboard,
        *words,
    ]


def submit(cluster: Cluster, *entrypoint: str) -> subprocess.CompletedProcess[str]:
    command = submission(cluster, "submit", "--working-dir", ".", "--", *entrypoint)
    while True:
        done = run(cluster, command)
        if NO_AGENT_YET not in done.stdout + done.stderr:
            return done


def run(cluster: Cluster, command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        env=cluster.environment,
        cwd=cluster.folder,
        capture_output=True,
        text=True,
        timeout=COMMAND_TIMEOUT_S,
        check=False,
    )


def jobs_on(cluster: Cluster) -> str:
    """Return what `whale-ray list` tells."""
    address = f"127.0.0.1:{cluster.ports['port']}"
    listed = run(cluster, [*WHALE_RAY, "list", "--address", address])
    assert listed.returncode == 0, listed.stderr
    return listed.stdout


def test_a_submitted_script_runs_with_the_modules_beside_it(cluster: Cluster) -> None:
    done = submit(cluster, sys.executable, "submitted.py")
    assert done.returncode == 0, done.stdout + done.stderr
    (told,) = re.findall(r"^fares (.*)$", done.stdout, re.MULTILINE)
    assert json.loads(told) == expected_fares()


def test_the_command_can_be_submitted_and_its_failure_is_the_job_s(cluster: Cluster) -> None:
    done = submit(cluster, *WHALE_RAY, "run", "mileage.py:failing", "--workers", "1")
    assert done.returncode == 1
    assert "KeyError: 'cab0'\nin operator 'fares', instance 0" in done.stdout


def test_a_job_that_is_stopped_drains_and_leaves_nothing(cluster: Cluster) -> None:
    entrypoint = [*WHALE_RAY, "run", "endless.py:topology", "--workers", "1", "--watch"]
    options = ["--submission-id", "endless", "--working-dir", "."]
    with subprocess.Popen(
        submission(cluster, "submit", *options, "--", *entrypoint),
        env=cluster.environment,
        cwd=cluster.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as following:
        assert following.stdout is not None
        seen = []
        while not re.search(r"running .* \| out [\d.]*[1-9]", seen[-1] if seen else ""):
            seen.append(following.stdout.readline())
            assert seen[-1], "".join(seen)
        stopped = run(cluster, submission(cluster, "stop", "endless"))
        assert stopped.returncode == 0, stopped.stdout + stopped.stderr
        rest = following.stdout.read()
    assert re.search(r"^out: [\d,]+ rows in /.*/out\.partial \(partial: ", rest, re.MULTILINE), rest
    assert jobs_on(cluster) == "no job runs\n"
