"""Every way on rows gives what its plain loop gives; the figures are nobody's test."""

from __future__ import annotations

import json
from typing import Any

import pytest

import whale_ray as whale
from whale_ray.cli.main import main
from whale_ray.lab.bench import rows


@pytest.mark.parametrize("way", rows.WAYS, ids=lambda way: way.name)
def test_a_job_makes_the_rows_of_its_loop(way: rows.Way) -> None:
    table = rows.trips(3000)
    topology = rows.build(way, table, table.to_pylist(), keep=True)
    found = whale.run(topology).results("out").to_arrow().to_pylist()

    def order(row: dict[str, Any]) -> str:
        return repr(sorted(row.items()))

    assert sorted(found, key=order) == sorted(way.loop(table.to_pylist()), key=order)


def test_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(rows, "QUICK_ROWS", 100)
    monkeypatch.setattr(rows, "REPETITIONS", 1)
    assert main(["bench", "rows", "--quick", "--json"]) == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [row["name"] for row in report["rows"]] == [way.name for way in rows.WAYS]
    assert all(row["value"] > 0 and row["ratio"] > 0 for row in report["rows"])
