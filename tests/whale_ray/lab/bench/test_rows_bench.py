"""Every workload on rows has the result of its plain loop; the figures are not tested."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import whale_ray as whale
from whale_ray.cli.main import main
from whale_ray.configs.errors import ResourceError
from whale_ray.lab.bench import rows
from whale_ray.lab.bench.peers import bytewax_rows
from whale_ray.lab.bench.peers.base import packages_of


@pytest.mark.smoke
@pytest.mark.parametrize("way", rows.WAYS, ids=lambda way: way.name)
def test_a_job_makes_the_rows_of_its_loop(way: rows.RowWorkload) -> None:
    table = rows.trips(3000)
    topology = rows.build(way, table, table.to_pylist(), keep=True)
    found = whale.run(topology).results("out").to_arrow().to_pylist()

    def order(row: dict[str, Any]) -> str:
        return repr(sorted(row.items()))

    assert sorted(found, key=order) == sorted(way.loop(table.to_pylist()), key=order)


@pytest.fixture
def _no_bytewax(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let Bytewax be in no environment, though another test may have imported it."""
    monkeypatch.setenv("WHALE_RAY_PEERS", str(tmp_path))
    monkeypatch.setattr("whale_ray.lab.bench.peers.base.find_spec", lambda name: None)


@pytest.mark.usefixtures("_no_bytewax")
def test_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(rows, "QUICK_ROWS", 100)
    monkeypatch.setattr(rows, "REPETITIONS", 1)
    assert main(["bench", "rows", "--quick", "--json"]) == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [row["name"] for row in report["rows"]] == [way.name for way in rows.WAYS]
    assert all(row["value"] > 0 and row["ratio"] > 0 for row in report["rows"])
    assert "Bytewax: not installed (make peers)" in report["notes"]


@pytest.mark.usefixtures("_no_bytewax")
def test_bytewax_has_equal_workloads_and_its_absence_is_reported() -> None:
    assert set(bytewax_rows.STEPS) < {way.name for way in rows.WAYS}
    with pytest.raises(ResourceError, match=r"^the peer bytewax: not installed \(make peers\)"):
        bytewax_rows.cpu_ns_per_row("iterable of dicts", 10)


@pytest.mark.skipif(not bytewax_rows.is_installed(), reason="needs Bytewax (make peers)")
@pytest.mark.parametrize("name", bytewax_rows.STEPS)
def test_bytewax_makes_the_rows_of_the_loop(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(packages_of(bytewax_rows.ENVIRONMENT)))
    dicts = rows.trips(3000).to_pylist()
    (way,) = (way for way in rows.WAYS if way.name == name)
    made = bytewax_rows.run_step(name, dicts, keep=True)
    assert sorted(map(repr, made)) == sorted(map(repr, way.loop(dicts)))
