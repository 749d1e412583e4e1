"""Ray's errors when it cannot be joined, and the messages for users in their place."""

from __future__ import annotations

import os
import subprocess

import psutil
import pytest
import ray

from tests.runs import await_ends
from whale_ray.ray_bridge import session
from whale_ray.ray_bridge.failures import explain_failure

MISMATCH = """Version mismatch: The cluster was started with:
    Ray: 2.9.3
    Python: 3.10.12
This process on 10.0.0.7 was started with:
    Ray: 2.60.0
    Python: 3.11.7
"""


def chained(outer: Exception, inner: Exception) -> Exception:
    outer.__cause__ = inner
    return outer


def test_another_version() -> None:
    error = chained(ConnectionError("Failed to connect to Ray cluster"), RuntimeError(MISMATCH))
    assert explain_failure("the Ray at 10.0.0.1:6379", error) == (
        "the Ray at 10.0.0.1:6379 is Ray 2.9.3 on Python 3.10.12, this process is Ray 2.60.0 on "
        "Python 3.11.7; use the cluster's versions, or start the cluster with these"
    )


def test_a_token_is_required() -> None:
    inner = RuntimeError("RPC error: InvalidAuthToken: Authentication token is missing")
    error = chained(ConnectionError("Failed to connect to Ray cluster"), inner)
    assert explain_failure("the Ray at 10.0.0.1:6379", error) == (
        "the Ray at 10.0.0.1:6379 refuses this process: it wants a token; set RAY_AUTH_MODE=token "
        "and RAY_AUTH_TOKEN_PATH (or RAY_AUTH_TOKEN) to the cluster's before Python starts"
    )


def test_a_port_in_use() -> None:
    error = OSError("Could not bind: Address already in use")
    assert explain_failure("a new Ray", error) == (
        "a new Ray cannot start, a port is in use: Could not bind: Address already in use; "
        "end what listens there, or join the running Ray with address='auto'"
    )


def test_a_folder_whose_path_is_too_long_for_sockets() -> None:
    error = OSError("validate_socket_filename failed: AF_UNIX path length cannot exceed 107 bytes")
    assert explain_failure("a new Ray", error).endswith(
        " 107 bytes; name a folder with a short path in the environment variable TMPDIR"
    )


def test_something_else_answers_there() -> None:
    assert explain_failure("the Ray at 10.0.0.1:80", SystemExit(15)) == (
        "the Ray at 10.0.0.1:80 does not answer as a Ray does; "
        "correct the address, or restart that Ray"
    )


def test_anything_else_in_one_line() -> None:
    error = RuntimeError("\n  Failed to start GCS.\nLast 0 lines of error files:\n")
    assert explain_failure("a new Ray", error) == (
        "a new Ray did not start: Failed to start GCS; "
        "`whale-ray doctor` tells what this machine offers"
    )


def test_an_interrupted_start_leaves_no_process_of_a_cluster_that_ray_has_ended(
    monkeypatch: pytest.MonkeyPatch, no_leaks: None
) -> None:
    """An agent that the raylet has just started is found though Ray ends the raylet first."""
    home = os.path.dirname(ray.__file__)
    raylets = []

    def begin(**_: object) -> None:
        script = "sleep 1000 >/dev/null & echo $!; wait"
        raylet = subprocess.Popen(
            ["sh", "-c", script, f"{home}/raylet"], stdout=subprocess.PIPE, text=True
        )
        assert raylet.stdout is not None
        raylets.append((raylet, psutil.Process(int(raylet.stdout.readline()))))
        raise KeyboardInterrupt

    def end() -> None:
        for raylet, _ in raylets:
            raylet.kill()
            raylet.communicate()

    monkeypatch.setattr(ray, "init", begin)
    monkeypatch.setattr(ray, "shutdown", end)
    with pytest.raises(KeyboardInterrupt):
        session._initialize("a Ray of its own")
    ((_, agent),) = raylets
    assert not await_ends([agent], 10)
