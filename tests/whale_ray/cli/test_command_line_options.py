"""Impossible options, and options without effect beside others, are refused before the start."""

from __future__ import annotations

from typing import Any

import pytest

from whale_ray.cli.main import main
from whale_ray.configs.settings import Settings

RIDES, STOCKS, OPTIONS = "ride-hailing", "stock-exchange", "options-market"
NEXMARK, YAHOO, CLUSTER = "nexmark", "yahoo", "cluster-monitoring"
SLASH, COUNT = "slash-nexmark", "read-only-count"
ROAD, TAXI = "linear-road", "taxi-regions"
SIZES = "give 1 to 4,096 instances"

REFUSED = {
    # numbers out of range, by the option's own name
    f"{RIDES} --parallelism 0": f"--parallelism is 0: {SIZES}",
    f"{RIDES} --parallelism 4097": f"--parallelism is 4097: {SIZES}",
    f"{RIDES} --radius-m -1": "--radius-m is -1.0: give 0 to 20,100,000 metres",
    f"{RIDES} --radius-m nan": "--radius-m is nan: give a number of metres",
    f"{RIDES} --max-age-s -5": "--max-age-s is -5.0: give 0 to 316,224,000 seconds",
    f"{RIDES} --vehicles 0": "--vehicles is 0: give 1 to 1,000,000",
    f"{RIDES} --hours -1": "--hours is -1.0: give 0.0002777777777777778 to 8,784.0",
    f"{RIDES} --seed -1": "--seed is -1: give 0 to 9,223,372,036,854,775,807",
    f"{RIDES} --limit 0": "--limit 0 leaves nothing to do; give 1 or more",
    f"{STOCKS} --parallelism 0": f"--parallelism is 0: {SIZES}",
    f"{STOCKS} --generate 0": "--generate is 0: give 1 to 1,000,000,000,000",
    f"{STOCKS} --symbols 0": "--symbols is 0: give 1 to 400,000",
    f"{STOCKS} --seed -1": "--seed is -1: give 0 to 9,223,372,036,854,775,807",
    f"{OPTIONS} --feeds 0": "--feeds is 0: give 1 to",
    f"{OPTIONS} --rate -1": "--rate is -1.0: give 1 to 100,000,000 messages per second",
    f"{OPTIONS} --seconds 0": "--seconds is 0.0: give 0.01 to 86,400 seconds",
    f"{OPTIONS} --line-messages 0": "--line-messages is 0: give",
    f"{OPTIONS} --contracts 0": "--contracts is 0: give 1 to 1,000,000",
    f"{YAHOO} --events 0": "--events is 0: give 1 to 1,000,000,000,000",
    f"{YAHOO} --campaigns 0": "--campaigns is 0: give 1 to 100,000",
    f"{YAHOO} --parallelism 0": f"--parallelism is 0: {SIZES}",
    f"{YAHOO} --window 0": "--window is '0': write a number and a unit, such as '10 seconds'",
    f"{YAHOO} --window 0s": "--window is '0s'",
    f"{YAHOO} --window=-5seconds": "--window is '-5seconds'",
    f"{YAHOO} --window 1month": "--window is '1month': months and years differ in length",
    f"{CLUSTER} --jobs 0": "--jobs is 0: give 1 to 100,000,000",
    f"{CLUSTER} --data . --first-jobs 0": "--first-jobs is 0: give 1 to 1,000,000,000,000",
    f"{CLUSTER} --first-jobs 5": "--first-jobs means nothing without --data; leave it out",
    f"{CLUSTER} --seed -1": "--seed is -1: give 0 to 9,223,372,036,854,775,807",
    f"{CLUSTER} --parallelism 0": f"--parallelism is 0: {SIZES}",
    f"{CLUSTER} --window 0s": "--window is '0s'",
    f"{NEXMARK} --events 0": "--events is 0: give 1 to 1,000,000,000,000",
    f"{NEXMARK} --events-per-s 0": "--events-per-s is 0: give 1 to 1,000,000",
    f"{NEXMARK} --seed -1": "--seed is -1: give 0 to 9,223,372,036,854,775,807",
    f"{NEXMARK} --parallelism 0": f"--parallelism is 0: {SIZES}",
    f"{SLASH} --events 0": "--events is 0: give 1 to 1,000,000,000,000",
    f"{SLASH} --zipf 4.5": "--zipf is 4.5: give 0 to 4",
    f"{SLASH} --query 7": "argument --query: unknown '7'; there are nb7, nb8, nb11",
    f"{SLASH} --data . --zipf 1": "--zipf means nothing with --data; leave one of them out",
    f"{ROAD} --expressways 0": "--expressways is 0: give 1 to 1,000",
    f"{ROAD} --vehicles 10 --accidents 6": "--accidents is 6: give 0 to 5",
    f"{TAXI} --trips 0": "--trips is 0: give 1 to 1,000,000,000,000",
    f"{TAXI} --window 0s": "--window is '0s'",
    f"{TAXI} --data . --box 1 2 1 3": "--box (1.0, 2.0, 1.0, 3.0): give west, south, east, north",
    f"{TAXI} --box 1 2 3 4": "--box means nothing without --data; leave it out",
    f"{COUNT} --keys 0": "--keys is 0: give 1 to 1,000,000,000,000",
    f"{COUNT} --records 0": "--records is 0: give 1 to 1,000,000,000,000",
    f"{COUNT} --zipf nan": "--zipf is nan: give a number",
    f"{NEXMARK} --query 6": "argument --query: query 6 is not offered: the average of a seller's"
    " last ten auctions is a window of rows over results that change, which windows here do not"
    " take; there are 0, 1, 2, 3, ",
    f"{NEXMARK} --query 10": "argument --query: query 10 is not offered: it logs the bids into"
    " files by the minute, which sinks here do not do; there are 0, 1, 2, 3, ",
    f"{NEXMARK} --query 99": "argument --query: unknown '99'",
    **{
        f"{app} --workers -3": "--workers must lie between 0 and 4,096, not -3"
        for app in (RIDES, STOCKS, OPTIONS, NEXMARK, YAHOO, CLUSTER, SLASH, COUNT, ROAD, TAXI)
    },
    f"{RIDES} --on processes --workers 2 --set runtime.hosts=3": "runtime.hosts=3, but there are"
    " only 2 workers: use --workers 3 or more, or fewer hosts",
    f"{RIDES} --workers 2 --set runtime.source_workers=2": "runtime.source_workers=2 leaves none of"
    " 2 workers for what follows the sources: use 3 workers or more",
    # options without effect beside others, or without others
    f"{RIDES} --data . --vehicles 5": "--vehicles means nothing with --data; leave one of them out",
    f"{RIDES} --data . --hours=24": "--hours means nothing with --data; leave one of them out",
    f"{RIDES} --seed 1 --data .": "--seed means nothing with --data; leave one of them out",
    f"{YAHOO} --data . --campaigns 5": "--campaigns means nothing with --data; leave one of them"
    " out",
    f"{NEXMARK} --data . --events 5": "--events means nothing with --data; leave one of them out",
    f"{CLUSTER} --data . --seed 5": "--seed means nothing with --data; leave one of them out",
    f"{STOCKS} --data . --symbols 5": "--symbols means nothing with --data; leave one of them out",
    f"{STOCKS} --data . --seed 5": "--seed means nothing with --data; leave one of them out",
    f"{STOCKS} --on-bad-rows fail": "--on-bad-rows means nothing without --data; leave it out",
    f"{OPTIONS} --on-bad-rows fail": "--on-bad-rows means nothing without --data; leave it out",
    f"{STOCKS} --no-compare": "--no-compare means nothing without --data; leave it out",
    f"{RIDES} --detach --json": "--json means nothing with --detach; leave one of them out",
    f"{RIDES} --detach --watch": "--watch means nothing with --detach; leave one of them out",
    f"{RIDES} --on processes --queue": "--queue means nothing with --on processes; leave one"
    " of them out",
    f"{RIDES} --on processes --address auto": "--address means nothing with --on processes; leave"
    " one of them out",
}


@pytest.fixture(autouse=True)
def nothing_starts(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """Make everything that prepares or starts something an error."""

    def started(*_arguments: Any, **_options: Any) -> None:
        raise AssertionError("something has been started")

    monkeypatch.chdir(tmp_path)
    for name in ("spark_session", "check_spark", "log_step"):
        monkeypatch.setattr(f"whale_ray.applications.shared.command.{name}", started)
    for name in ("run", "submit"):
        monkeypatch.setattr(f"whale_ray.api.submission.{name}", started)


ELSEWHERE = {
    "stop fares --timeout -1": "--timeout is -1: give seconds, 0 or more",
    "stop fares --timeout nan": "--timeout is nan: give seconds, 0 or more",
    "savepoint fares --timeout inf": "--timeout is inf: give seconds, 0 or more",
    "savepoint fares --timeout -1": "--timeout is -1: give seconds, 0 or more",
    "simulate --hosts 4 --out x": "--out means nothing with --hosts; leave one of them out",
    "simulate --hosts 4 --no-plots": "--no-plots means nothing with --hosts; leave one of them out",
    "simulate --calibrate --out x": "--out means nothing with --calibrate; leave one of them out",
    "simulate --validate --no-plots": "--no-plots means nothing with --validate; leave one of them"
    " out",
    "simulate --calibrate --costs published": "--costs means nothing with --calibrate; leave one of"
    " them out",
}


@pytest.mark.parametrize("line", ELSEWHERE)
def test_the_other_commands_refuse_likewise(line: str, capsys: Any) -> None:
    assert main(line.split()) == 2
    assert capsys.readouterr().err == f"whale-ray: {ELSEWHERE[line]}\n"


@pytest.mark.parametrize("command", ["run", "explain"])
@pytest.mark.parametrize("line", REFUSED)
def test_an_option_is_refused_in_one_line_before_anything_starts(
    command: str, line: str, capsys: Any
) -> None:
    assert main([command, *line.split()]) == 2
    (told,) = capsys.readouterr().err.splitlines()
    assert told.startswith(f"whale-ray: {REFUSED[line]}")


def test_no_message_names_a_setting_of_an_application_in_the_place_of_its_option() -> None:
    """Names with '_' are settings; those of the whole engine begin with their section."""
    sections = tuple(f"{name}." for name in vars(Settings()))
    for told in REFUSED.values():
        for word in told.replace("=", " ").split():
            assert "_" not in word or word.startswith(sections)
