"""The Yahoo benchmark: its generator, and its counts against SQL over the same rows."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import whale_ray as whale
from whale_ray.applications.yahoo.generator import ads_table, event_tables, generate
from whale_ray.applications.yahoo.settings import YahooSettings
from whale_ray.applications.yahoo.topology import build
from whale_ray.cli.main import main
from whale_ray.configs.errors import InputError

SETTINGS = YahooSettings(events=30_000, campaigns=20)
COLUMNS = ["window_start", "window_end", "campaign_id", "views"]


@cache
def events() -> pa.Table:
    return pa.concat_tables(event_tables(SETTINGS))


def counted(rows: pa.Table, ads: pa.Table, seconds: int) -> list[tuple]:
    """Return the application's answer, by DuckDB."""
    with duckdb.connect() as connection:
        connection.register("events", rows)
        connection.register("ads", ads)
        return connection.sql(f"""
            SELECT start, start + INTERVAL '{seconds} seconds', campaign_id, count(*) FROM (
                SELECT time_bucket(INTERVAL '{seconds} seconds', event_time) AS start, campaign_id
                FROM events JOIN ads USING (ad_id) WHERE event_type = 'view')
            GROUP BY ALL ORDER BY ALL""").fetchall()


def ordered(found: pa.Table) -> list[tuple]:
    assert found.column_names == COLUMNS
    return sorted(tuple(row.values()) for row in found.to_pylist())


@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize(("window", "seconds"), [("10 seconds", 10), ("10 minutes", 600)])
def test_counts_are_those_of_sql(parallelism: int, window: str, seconds: int) -> None:
    ads = ads_table(SETTINGS).slice(3)  # three advertisements are not known
    topology = build(
        whale.sources.arrow(events()),
        ads,
        whale.sinks.collect(),
        window=window,
        parallelism=parallelism,
    )
    found = ordered(whale.run(topology).results("out").to_arrow())
    assert found == counted(events(), ads, seconds)
    assert 0 < sum(views for *_, views in found) < events().num_rows


def test_the_generator_draws_uniformly_and_keeps_time() -> None:
    rows = events()
    times = rows["event_time"].cast(pa.int64()).to_numpy()
    assert (np.diff(times) == 10).all()
    for name, values in (("event_type", 3), ("ad_type", 5), ("ad_id", 200), ("user_id", 100)):
        shares = np.unique(rows[name].to_numpy(), return_counts=True)[1] / rows.num_rows
        assert shares == pytest.approx([1 / values] * values, rel=0.5)
    ads = ads_table(SETTINGS)
    assert set(rows["ad_id"].unique().to_pylist()) == set(ads["ad_id"].to_pylist())
    campaigns, counts = np.unique(ads["campaign_id"].to_numpy(), return_counts=True)
    assert len(campaigns) == 20
    assert (counts == 10).all()


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    few = YahooSettings(events=2_000)
    one, other = (generate(tmp_path / name, few).read_bytes() for name in "ab")
    assert one == other
    assert generate(tmp_path, YahooSettings(events=2_000, seed=2)).read_bytes() != one


def test_an_advertisement_has_one_campaign() -> None:
    ads = ads_table(SETTINGS)
    twice = pa.concat_tables([ads, ads.slice(0, 1)])
    with pytest.raises(InputError, match="an ad_id is there twice"):
        build(whale.sources.arrow(events()), twice, whale.sinks.collect())


def test_the_command_takes_generated_events_and_a_users_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    pq.write_table(pq.read_table(generate("given", SETTINGS)), "given/events.parquet")
    pq.write_table(ads_table(SETTINGS), "given/ads.parquet")
    expected = counted(events(), ads_table(SETTINGS), 60)
    for source in ("--events 30000 --campaigns 20", "--data given"):
        words = ["run", "yahoo", "--on", "inline", "--json", "--window", "1 minute"]
        assert main([*words, *source.split()]) == 0
        told = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert (told["rows_in"], told["rows_out"]) == ({"events": 30_000}, len(expected))
        assert ordered(pq.read_table("out/yahoo")) == expected
    (tmp_path / "given" / "ads.parquet").unlink()
    assert main([*words, "--data", "given"]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        "whale-ray: --data given has no ads: put ads.parquet there, a file or a folder of files"
    )
    pq.write_table(pa.table({"ad_id": ["a"]}), "given/ads.parquet")
    assert main([*words, "--data", "given"]) == 2
    assert "needs the text columns ad_id and campaign_id" in capsys.readouterr().err
