"""What a machine costs: lines, links, and the file that they are kept in."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from whale_ray.configs.errors import InputError, UsageError
from whale_ray.lab.simulator.costs import LinearCost, LinkRate, read_costs, wire_bytes
from whale_ray.lab.simulator.default_costs import MEASURED, PUBLISHED


def test_lines_are_read_at_the_size_of_a_slice() -> None:
    costs = dataclasses.replace(MEASURED, send=LinearCost(2e-6, 3e-9))
    assert costs.slice_costs(1000).send_s == pytest.approx(5e-6)
    assert costs.fixed_costs().send_s == pytest.approx(2e-6)
    assert costs.slice_costs(1000, send_s=1.0).send_s == 1.0


def test_a_link_is_busy_for_all_bytes_on_the_wire() -> None:
    costs = MEASURED.slice_costs(100_000, LinkRate(100.0, burst_bytes=25_000))
    assert costs.occupancy_s == pytest.approx(wire_bytes(100_000) * 8 / 100e6)
    assert wire_bytes(100_000) > 100_000 * 1514 / 1448
    assert costs.burst_s == pytest.approx(25_000 * 8 / 100e6)
    assert MEASURED.slice_costs(100_000).occupancy_s == 0


def test_a_file_gives_back_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    MEASURED.write(path)
    assert read_costs(path) == MEASURED
    assert json.loads(path.read_text(encoding="utf-8"))["machine"] == MEASURED.machine


def test_yaml_is_read_too(tmp_path: Path) -> None:
    import yaml

    path = tmp_path / "costs.yaml"
    path.write_text(yaml.safe_dump(MEASURED.as_dict()), encoding="utf-8")
    assert read_costs(path) == MEASURED


def test_the_published_constants_are_whales_own_model() -> None:
    costs = PUBLISHED.slice_costs(1)
    assert (costs.send_s, costs.serialize_s, costs.receive_s) == (5.2e-6, 0, 0)
    assert PUBLISHED.per_tuple


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "{path} is neither JSON nor YAML; write one with whale-ray simulate --calibrate"),
        (
            "machine: x",
            "{path} does not have the costs machine, serialize, encode, send, receive, process, "
            "turn_s, wake_s, settle_s, worker_wake_s, delay_s, control_s",
        ),
    ],
)
def test_files_that_are_none_are_refused(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "costs.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(InputError) as refused:
        read_costs(path)
    assert str(refused.value) == message.replace("{path}", str(path))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("turn_s", -1, "turn_s must be seconds, 0 or more"),
        ("turn_s", "soon", "turn_s must be seconds, 0 or more"),
        ("send", 5, "send must have per_slice_s and per_byte_s"),
        (
            "send",
            {"per_slice_s": 1, "per_byte_s": -1},
            "send.per_byte_s must be seconds, 0 or more",
        ),
    ],
)
def test_costs_that_are_no_times_are_refused(
    tmp_path: Path, name: str, value: object, message: str
) -> None:
    path = tmp_path / "costs.json"
    path.write_text(json.dumps({**MEASURED.as_dict(), name: value}), encoding="utf-8")
    with pytest.raises(InputError) as refused:
        read_costs(path)
    assert str(refused.value) == f"{path}: {message}"


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot read .*: No such file or directory"):
        read_costs(tmp_path / "none.json")
    with pytest.raises(InputError, match="cannot write .*: No such file or directory"):
        MEASURED.write(tmp_path / "none" / "costs.json")


@pytest.mark.parametrize("nbytes", [0, (16 << 20) + 1])
def test_slices_have_a_size(nbytes: int) -> None:
    with pytest.raises(UsageError, match="they must have 1 to 16,777,216"):
        MEASURED.slice_costs(nbytes)


def test_a_link_carries_something() -> None:
    with pytest.raises(UsageError, match="a link of 0 Mbit/s carries nothing"):
        LinkRate(0)
