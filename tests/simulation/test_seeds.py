"""Seeds: a broken protocol is detected, and the printed command repeats the same failure."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.simulation import stop_and_wait
from tests.simulation.__main__ import main
from tests.simulation.seeds import (
    SCENARIOS,
    Scenario,
    SeedFailedError,
    find_scenario,
    for_seeds,
    fresh_base,
    play_seed,
    seeds_from,
    seeds_of_file,
)
from whale_ray.configs.errors import InputError, UsageError

SEEDS = 50
"""Enough to catch the broken toy: it passes a seed with a chance of 1 in 8 at most."""


def test_the_sound_toy_passes_and_the_broken_one_is_caught():
    assert for_seeds(stop_and_wait.SOUND, seeds_from(fresh_base(), SEEDS)) == SEEDS
    with pytest.raises(SeedFailedError, match="replay: seed="):
        for_seeds(stop_and_wait.BROKEN, seeds_from(fresh_base(), SEEDS))


def test_the_printed_command_replays_the_very_failure(capsys):
    with pytest.raises(SeedFailedError) as caught:
        for_seeds(stop_and_wait.BROKEN, range(SEEDS))
    printed = re.match(
        r"replay: seed=(\d+) \(python -m tests\.simulation (replay (\S+) \1)\)\n",
        str(caught.value),
    )
    assert printed
    assert main(printed[2].split()) == 1
    assert capsys.readouterr().out == f"{caught.value}\n"
    assert isinstance(caught.value.__cause__, AssertionError)


def test_a_replay_that_ends_well_shows_its_trace(capsys):
    name = stop_and_wait.SOUND.name
    assert main(["replay", name, "5"]) == 0
    out = capsys.readouterr().out
    mark = play_seed(stop_and_wait.SOUND, 5)
    assert "receiver → sender" in out
    assert out.endswith(f"{name}: seed 5 is well, fingerprint {mark:016x}\n")


def test_whatever_a_scenario_raises_is_reported_with_its_seed():
    def story(simulation: object) -> None:
        raise KeyError("lost")

    with pytest.raises(
        SeedFailedError, match=r"^replay: seed=3 .*(?s:.)*KeyError: 'lost'"
    ) as caught:
        play_seed(Scenario("story", story), 3)
    assert isinstance(caught.value.__cause__, KeyError)


def test_soaking_goes_on_with_the_other_scenarios(capsys):
    broken, sound = stop_and_wait.BROKEN.name, stop_and_wait.SOUND.name
    assert main(["soak", broken, sound, "--count", "100", "--base", "1"]) == 1
    out = capsys.readouterr().out
    assert out.startswith(f"100 seeds from base 1: {broken}, {sound}\n")
    assert f"{sound} 50\n" in out and f"{broken} failed\nreplay: seed=" in out
    assert out.endswith("1 of 2 scenarios failed (base 1)\n")
    assert main(["soak", sound, "--count", "10"]) == 0
    base = re.match(r"10 seeds from base (\d+)", capsys.readouterr().out)
    assert base and int(base[1]) < 1 << 40


def test_every_scenario_of_whale_ray_is_found_by_its_name():
    for name in SCENARIOS:
        assert find_scenario(name).name == name


@pytest.mark.parametrize("name", ["none", "none:at_all", "none.py:at_all", "json:dumps"])
def test_an_unknown_scenario_is_a_usage_error(name, capsys):
    with pytest.raises(UsageError, match="scenario"):
        find_scenario(name)
    assert main(["replay", name, "1"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_past_failures_are_numbers_and_comments(tmp_path):
    path = tmp_path / "seeds.txt"
    assert seeds_of_file(path) == ()
    path.write_text("# all of them\n12\n\n7  # a lost grant\n")
    assert seeds_of_file(path) == (12, 7)
    path.write_text("12\nseven\n")
    with pytest.raises(InputError, match="seeds.txt:2: 'seven' is no seed"):
        seeds_of_file(path)


def test_the_simulator_loads_nothing_heavy_and_its_scenarios_neither_ray_nor_spark():
    program = f"""
import sys
import tests.simulation.__main__
print([name for name in ("ray", "pyspark", "numba", "numpy", "pandas") if name in sys.modules])
from tests.simulation.seeds import find_scenario
for name in {list(SCENARIOS)}:
    find_scenario(name)
print([name for name in ("ray", "pyspark", "pandas") if name in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n[]\n"


def test_fresh_bases_differ():
    assert len({fresh_base() for _ in range(100)}) == 100
    assert list(seeds_from(5, 3)) == [5, 6, 7]
