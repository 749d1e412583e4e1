"""Ctrl-C and SIGTERM while Java, Spark and Ray come up, work and end: nothing of them is left.

Each is sent as soon as a process or a line is seen that belongs to a step.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.runs import commands_below, rest

pytestmark = [pytest.mark.long, pytest.mark.spark]

LIMIT_S = 120
LOGGED = re.compile(r"\[\d{4}-\d\d-\d\d .*\] \w+\.cc:\d+: ")
SCRIPT = """
    import signal
    import sys
    from pathlib import Path
    from pyspark.sql import SparkSession
    from pyspark.sql.functions import udf
    from whale_ray.deployment.signals import interrupting_signals
    from whale_ray.spark import spark_on_ray
    from whale_ray.spark.local import spark_locally

    where, working = sys.argv[1:]

    def work(value):
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as it is in a worker until it begins
        Path(working).touch()
        while True:
            pass

    def main():
        begin = spark_on_ray if where == "ray" else spark_locally
        with begin("interrupted") as session:
            assert SparkSession.getActiveSession() is not None
            print("started", flush=True)
            session.range(1).select(udf(work)("id")).collect()

    if __name__ == "__main__":
        try:
            with interrupting_signals():
                main()
        except KeyboardInterrupt:
            print("interrupted", flush=True)
"""
WORKING = "working"
BUSY = "a worker that is busy"
RAY, AGAIN = pytest.mark.ray, pytest.mark.exhaustive
STEPS = [
    ("here", "bin/spark-", signal.SIGINT),  # Spark's scripts: the first one is gone in milliseconds
    pytest.param("here", "launcher.Main", signal.SIGINT, marks=AGAIN),
    ("here", "deploy.SparkSubmit", signal.SIGINT),
    pytest.param("here", "deploy.SparkSubmit", signal.SIGTERM, marks=AGAIN),
    ("here", "pyspark.daemon", signal.SIGINT),
    ("here", BUSY, signal.SIGINT),
    pytest.param("ray", "launcher.Main", signal.SIGINT, marks=[RAY, AGAIN]),
    pytest.param("ray", "gcs/gcs_server", signal.SIGTERM, marks=RAY),
    pytest.param("ray", "raylet/raylet", signal.SIGINT, marks=[RAY, AGAIN]),
    pytest.param("ray", "AppMasterEntryPoint", signal.SIGINT, marks=RAY),
    pytest.param("ray", "deploy.SparkSubmit", signal.SIGTERM, marks=[RAY, AGAIN]),
    pytest.param("ray", "pyspark.daemon", signal.SIGINT, marks=[RAY, AGAIN]),
    pytest.param("ray", BUSY, signal.SIGINT, marks=RAY),
]


@pytest.fixture
def start(tmp_path: Path, no_leaks: None) -> Iterator[Any]:
    """Return a function that starts Spark in a process of its own, here or on Ray."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    started: list[subprocess.Popen[str]] = []

    def begin(where: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, str(script), where, str(tmp_path / WORKING)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def has_come_to(sign: str, process: psutil.Process, working: Path) -> bool:
    if sign == BUSY:
        return working.exists()
    return any(sign in command for command in commands_below(process))


@pytest.mark.parametrize(("where", "sign", "number"), STEPS)
def test_a_start_that_is_interrupted_leaves_nothing(
    start: Any, where: str, sign: str, number: int, tmp_path: Path
) -> None:
    process = start(where)
    watched = psutil.Process(process.pid)
    until = time.monotonic() + LIMIT_S
    while not has_come_to(sign, watched, tmp_path / WORKING):
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < until, f"no {sign!r} is seen"
        if sign == BUSY:  # nothing that is gone in milliseconds
            rest()
    if number == signal.SIGINT:
        os.killpg(process.pid, number)  # as a terminal does
    else:
        process.send_signal(number)
    told, errors = process.communicate(timeout=LIMIT_S)
    assert told.removeprefix("started\n") == "interrupted\n"
    # Ray's own log lines, such as that there is no network, are not ours.
    assert [line for line in errors.splitlines() if not LOGGED.match(line)] == []
    assert process.returncode == 0
