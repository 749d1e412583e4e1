"""Peers: their shares and sums, how their programs are run and ended, and those installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from whale_ray.configs.errors import ResourceError, UsageError
from whale_ray.lab.bench.peers import NOT_INSTALLED, all_peers, available, ray_actors, zeromq
from whale_ray.lab.bench.peers.__main__ import main
from whale_ray.lab.bench.peers.base import (
    Command,
    PeerOutput,
    PeerResult,
    PeerSystem,
    end_with_parent,
    processes_for,
    run_program,
    shares,
)
from whale_ray.lab.bench.peers.flink import Flink
from whale_ray.lab.bench.peers.openmpi import OpenMpi
from whale_ray.lab.bench.peers.zeromq import ZeroMqFanOut, ZeroMqPublish, ZeroMqPush

LINE = {"tuples": 2000, "wall_s": 0.5, "source_cpu_s": 0.1, "cpu_s": None, "note": "as told"}


@pytest.mark.parametrize(
    ("instances", "processes"), [(1, 1), (8, 8), (16, 16), (17, 17), (120, 30), (480, 30)]
)
def test_instances_are_shared_out_evenly(instances: int, processes: int) -> None:
    assert processes_for(instances) == processes
    assert sum(shares(instances)) == instances
    assert len(shares(instances)) == processes
    assert max(shares(instances)) - min(shares(instances)) <= 1


def test_results_are_reported_per_tuple() -> None:
    assert PeerOutput(**LINE).as_result() == PeerResult(4000, 50_000, None, "as told")
    assert PeerOutput(0, 3.0, 0.1, 0.1, "slow").as_result().tuples_per_s == 0


def script(text: str) -> Command:
    return Command([sys.executable, "-c", text])


def test_a_program_reports_on_its_last_line(no_leaks: None) -> None:
    told = run_program("it", script(f"print('noise'); print({json.dumps(json.dumps(LINE))})"), 30)
    assert told == PeerOutput(**LINE)


def test_a_failing_program_is_named_with_its_output(no_leaks: None) -> None:
    with pytest.raises(ResourceError, match=r"^the peer it failed \(3\): no port$"):
        run_program("it", script("import sys; print('no port', file=sys.stderr); sys.exit(3)"), 30)


def test_a_program_that_does_not_end_is_ended_with_all_that_it_started(no_leaks: None) -> None:
    text = "import subprocess; subprocess.run(['sleep', '600'])"
    with pytest.raises(ResourceError, match=r"^the peer it did not end within 1 s$"):
        run_program("it", script(text), 1)


def test_a_program_ends_with_who_started_it(no_leaks: None) -> None:
    text = (
        "import subprocess, sys\n"
        "from whale_ray.lab.bench.peers.base import end_with_parent\n"
        "child = subprocess.Popen(['sleep', '600'], preexec_fn=end_with_parent)\n"
        "print('begun', flush=True)\n"
        "child.wait()"
    )
    starter = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True)
    with starter:
        assert starter.stdout is not None
        assert starter.stdout.readline() == "begun\n"
        starter.kill()
        assert not starter.stdout.read()  # nobody has it open any more, the child neither


def test_a_program_whose_starter_is_gone_already_does_not_begin() -> None:
    def exit_code(starter: int) -> int:
        before = partial(end_with_parent, starter)
        return subprocess.run(["true"], preexec_fn=before, check=False).returncode

    assert exit_code(os.getpid()) == 0
    assert exit_code(os.getppid()) == 1  # as for an orphan: another one is its parent now


def test_a_batch_is_sent_even_if_the_time_is_up_before() -> None:
    sent: list[str] = []
    assert zeromq._paced(0.0, lambda: sent.append("batch"), lambda: sent.append("end")) == 1
    assert sent == ["batch", "end"]
    actor = SimpleNamespace(take=SimpleNamespace(remote=lambda message: message.size))
    ray = SimpleNamespace(get=sent.extend)
    assert ray_actors._fan_out(ray, [actor], 3, np.zeros(100, np.uint8), end_ns=0) == 1
    assert sent == ["batch", "end", 100, 100, 100]


def test_peers_that_are_not_installed_say_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("WHALE_RAY_PEERS", str(tmp_path))
    assert not {"openmpi", "openmpi-untouched", "flink"} & {peer.name for peer in available()}
    for peer in (OpenMpi(), Flink()):
        with pytest.raises(ResourceError, match=rf"^the peer {peer.name}: not installed \(make p"):
            peer.measure(8, 1)


def test_more_instances_than_a_peer_takes_are_refused() -> None:
    with pytest.raises(UsageError, match="takes 1 to 512 instances, not 513"):
        ZeroMqFanOut().measure(513, 1)


def test_the_command_lists_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [peer.name for peer in all_peers()]
    assert len({peer.name for peer in all_peers()}) == len(lines)
    assert all(NOT_INSTALLED in line or len(line.split()) > 3 for line in lines)


@pytest.mark.smoke
def test_the_fan_out_by_hand_loses_nothing(
    capsys: pytest.CaptureFixture[str], no_leaks: None
) -> None:
    """Its program counts what every instance received, and fails if that is not what was sent."""
    arguments = ["zeromq-fan-out", "--instances", "3", "--seconds", "0.05", "--batch", "100"]
    assert main([*arguments, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["tuples_per_s"] > 0
    assert told["source_cpu_ns_per_tuple"] < told["cpu_ns_per_tuple"]


@pytest.mark.long
@pytest.mark.parametrize("peer", available(), ids=lambda peer: peer.name)
def test_every_installed_peer_measures(peer: PeerSystem, no_leaks: None) -> None:
    result = peer.measure(3, 0.5)
    assert result.tuples_per_s > 0
    assert result.note


@pytest.mark.long
@pytest.mark.parametrize("peer", [ZeroMqFanOut(), ZeroMqPush(), ZeroMqPublish()])
def test_many_instances_share_processes(peer: PeerSystem, no_leaks: None) -> None:
    result = peer.measure(40, 0.5)
    assert result.tuples_per_s > 0
    assert result.note
