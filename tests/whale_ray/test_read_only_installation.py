"""An installation that cannot be written to, used by somebody without a home.

The copy is a real one, so everything is compiled anew; that is why these tests take their time.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest

import whale_ray
from tests.transport.read_only import make_read_only, place_for_all, run_as_stranger

JOB = """
import sys
import whale_ray as whale

class Doubled(whale.Process):
    def on_batch(self, batch, out):
        out.emit(batch)
        out.emit(batch)

if __name__ == "__main__":
    topology = whale.Topology("stranger")
    rows = topology.source(whale.sources.iterable([{"key": f"k{n}"} for n in range(5)]), id="rows")
    doubled = rows.key_by("key").process(Doubled, id="doubled", parallelism=2)
    doubled.sink(whale.sinks.collect(), id="out")
    way = sys.argv[1]
    job = whale.run(topology) if way == "inline" else whale.submit(topology, on=way).wait()
    print(len(job.results("out").to_arrow()), "rows")
"""


@pytest.fixture(scope="module")
def installation(tmp_path_factory):
    """Return a folder with a copy of whale_ray that cannot be written to."""
    folder = tmp_path_factory.mktemp("installed")
    shutil.copytree(
        Path(whale_ray.__file__).parent,
        folder / "whale_ray",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    make_read_only(folder)
    yield folder
    for path in (folder, *folder.rglob("*")):
        if path.is_dir():
            path.chmod(0o755)


@pytest.fixture(scope="module")
def temporary():
    """Return a temporary directory for all users; the tests share what is compiled."""
    with tempfile.TemporaryDirectory(prefix="stranger-", dir="/tmp") as reachable:
        Path(reachable).chmod(0o755)  # pytest's own can be entered by its user alone
        yield place_for_all(Path(reachable, "tmp"))


@pytest.mark.long
@pytest.mark.parametrize(
    "way",
    [
        pytest.param("inline", marks=pytest.mark.exhaustive),
        "processes",
        pytest.param("ray", marks=pytest.mark.ray),
    ],
)
def test_a_job_runs_and_says_once_where_compiled_functions_are_kept(installation, temporary, way):
    (temporary / "job.py").write_text(JOB)
    done = run_as_stranger("job.py", way, temporary=temporary, PYTHONPATH=str(installation))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "10 rows"
    (folder,) = temporary.glob("whale-ray-compiled-*")
    assert done.stderr.count(str(folder)) == 1
    assert not list(installation.rglob("__pycache__"))


@pytest.mark.long
def test_the_doctor_and_an_application_work_as_well(installation, temporary):
    doctor = run_as_stranger(
        *("-m", "whale_ray.cli.main", "doctor"), temporary=temporary, PYTHONPATH=str(installation)
    )
    assert doctor.returncode == 0, doctor.stderr
    assert f"kept in {temporary}/whale-ray-compiled-" in doctor.stdout
    words = "run ride-hailing --vehicles 30 --hours 1 --on inline --output out"
    done = run_as_stranger(
        *("-m", "whale_ray.cli.main", *words.split()),
        temporary=temporary,
        PYTHONPATH=str(installation),
    )
    assert done.returncode == 0, done.stderr
    assert "pandas.read_parquet" in done.stdout
