"""Reports: aims, the JSON for programs, the table for people."""

from __future__ import annotations

import dataclasses
import json

import pytest

from whale_ray.lab.bench.report import (
    Aim,
    BenchReport,
    BenchRow,
    Machine,
    describe_machine,
    file_system_of,
    median,
)

MACHINE = Machine("Some CPU", 2, 24.0, "Linux 6.1 x86_64", "3.11.7", {"numpy": "2.4.6"}, 0.5)
ROWS = (
    BenchRow(
        "ring", {"KiB": 256}, 61.23, "GB/s", 0.594, "memcpy", Aim("ratio", "at least", 0.6), 1.98
    ),
    BenchRow("call", {"bytes": 64, "how": "each"}, 301.4, "ns", aim=Aim("value", "at most", 350)),
    BenchRow("peer", {}, 12_345_678.0, "tuples/s", also={"x pipe": 2.5, "lost": 0}),
)
REPORT = BenchReport("transport", "whale-ray bench transport", MACHINE, ROWS, ("A note.",))


@pytest.mark.parametrize(
    ("quantity", "bound", "limit", "met"),
    [
        ("value", "at least", 10, True),
        ("value", "at least", 10.1, False),
        ("value", "at most", 10, True),
        ("value", "at most", 9.9, False),
        ("ratio", "at least", 3, True),
        ("ratio", "at most", 2.9, False),
    ],
)
def test_aims(quantity, bound, limit: float, met: bool):
    row = BenchRow("x", {}, value=10, unit="ns", ratio=3)
    assert Aim(quantity, bound, limit).met(row) is met


def test_an_aim_for_a_ratio_that_was_not_measured_is_missed():
    assert not Aim("ratio", "at most", 5).met(BenchRow("x", {}, 1, "ns"))


def test_the_json_is_one_object_with_the_documented_fields():
    text = REPORT.as_json()
    assert "\n" not in text
    content = json.loads(text)
    assert list(content) == ["suite", "command", "machine", "notes", "rows"]
    assert content["machine"] == dataclasses.asdict(MACHINE)
    assert content["notes"] == ["A note."]
    assert [list(row) for row in content["rows"]] == [
        ["name", "parameters", "value", "unit", "ratio", "against", "aim", "cores", "also"]
    ] * 3
    assert content["rows"][0]["aim"] == {
        "quantity": "ratio",
        "bound": "at least",
        "limit": 0.6,
        "met": False,
    }
    assert content["rows"][2]["aim"] is None
    assert [row["also"] for row in content["rows"]] == [{}, {}, {"x pipe": 2.5, "lost": 0}]


def test_the_table():
    assert REPORT.render() == (
        "whale-ray bench transport\n"
        "Some CPU, 2 cores, 24 GiB; Linux 6.1 x86_64; Python 3.11.7, numpy 2.4.6; load 0.5\n"
        "\n"
        "what  parameters               value  unit       ratio  against  aim            cores"
        "  also\n"
        "----  ------------------  ----------  --------  ------  -------  -------------  -----"
        "  ------------------\n"
        "ring  KiB 256                   61.2  GB/s      0.594x  memcpy   ≥ 0.6x MISSED   1.98\n"
        "call  bytes 64, how each         301  ns                         ≤ 350 met\n"
        "peer                      12,345,678  tuples/s                                         "
        "x pipe 2.5; lost 0\n"
        "\n"
        "A note.\n"
    )


def test_the_middle_of_the_repetitions():
    assert median([5, 1, 1000]) == 5


def test_this_machine_is_described():
    machine = describe_machine(("numpy", "no-such-package"))
    assert machine.cores >= 1
    assert machine.memory_gib > 0
    assert machine.packages["numpy"][0].isdigit()
    assert machine.packages["no-such-package"] == "missing"


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/", "ext4"),
        ("/nowhere/x", "ext4"),
        ("/tmpx", "ext4"),
        ("/mnt/a disk", "xfs"),
        ("/mnt/a disk/x", "tmpfs"),
        ("/mnt/a disk/xy", "xfs"),
    ],
)
def test_the_file_system_is_that_of_the_nearest_mount(tmp_path, folder: str, kind: str):
    mounts = tmp_path / "mounts"
    mounts.write_text(
        "/dev/sda / ext4 rw 0 0\n"
        "tmpfs /mnt/a\\040disk/x tmpfs rw 0 0\n"
        "/dev/sdb /mnt/a\\040disk xfs rw 0 0\n"
    )
    assert file_system_of(folder, mounts) == kind


def test_a_folder_here_has_a_file_system(tmp_path):
    assert file_system_of(tmp_path) != "unknown"
