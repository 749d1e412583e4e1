"""The input of the streaming suite: the streams in Parquet, and in files to map into memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from whale_ray.applications.nexmark import generator
from whale_ray.applications.nexmark.settings import NexmarkSettings
from whale_ray.lab.bench.streaming import inputs as stream_files
from whale_ray.lab.bench.streaming.inputs import (
    InputFiles,
    campaigns_by_ad,
    most_keys,
    stream_path,
    write_inputs,
    write_skewed,
)
from whale_ray.lab.bench.streaming.mapped_files import (
    arrow_path,
    column_path,
    map_for_flink,
    map_streams,
    mapped_bytes,
)
from whale_ray.lab.bench.streaming.workloads import workload_named


def test_both_files_have_the_same_bids_and_one_is_out_of_order(inputs: InputFiles) -> None:
    ordered, mixed = (
        pq.read_table(stream_path(folder, "bids")) for folder in (inputs.in_order, inputs.folder)
    )
    sorting = [("date_time", "ascending"), ("extra", "ascending")]
    assert mixed.sort_by(sorting).equals(ordered.sort_by(sorting))
    in_order = ordered["date_time"].to_numpy()
    assert np.all(in_order[1:] >= in_order[:-1])
    times = mixed["date_time"].to_numpy().astype(np.int64)
    behind = np.maximum.accumulate(times) - times
    assert 0.05 < np.mean(behind > 0) < 0.15
    assert 2_000_000 < behind.max() <= 3_000_000


def test_files_are_written_part_by_part(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A file as a whole would not fit into memory; row groups are whole, sorted rows the same."""
    most = 0
    concatenated = pa.concat_tables

    def counted(tables: list[pa.Table], **options: Any) -> pa.Table:
        nonlocal most
        found = concatenated(tables, **options)
        most = max(most, found.num_rows)
        return found

    monkeypatch.setattr(pa, "concat_tables", counted)
    monkeypatch.setattr(stream_files, "_SORTED_AT_ONCE", 40_000)
    columns = {"bids": ("auction", "date_time")}
    events = 1_200_000
    made = write_inputs(tmp_path, events, columns)
    assert made.rows == {"bids": events // 50 * 46}
    assert {path.stem for path in tmp_path.glob("*.parquet")} == {"bids", "ads"}
    file = pq.ParquetFile(stream_path(tmp_path, "bids"))
    sizes = [file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)]
    assert set(sizes[:-1]) == {1 << 16}
    assert most < 700_000 < made.rows["bids"]
    mixed, ordered = (pq.read_table(stream_path(f, "bids")) for f in (tmp_path, made.in_order))
    assert mixed.sort_by("date_time").equals(ordered)
    drawn = concatenated(list(generator.tables("bids", NexmarkSettings(events=events))))
    assert mixed["auction"].combine_chunks().equals(drawn["auction"].combine_chunks())


@pytest.mark.parametrize("stream", ["bids", "persons", "auctions", "events"])
def test_times_are_whole_milliseconds(stream: str, inputs: InputFiles) -> None:
    table = pq.read_table(stream_path(inputs.folder, stream))
    assert inputs.rows[stream] == table.num_rows
    times = table["event_time" if stream == "events" else "date_time"].to_numpy()
    assert np.all(times.astype(np.int64) % 1_000 == 0)


def test_most_keys_counts_the_fullest_window(inputs: InputFiles) -> None:
    table = pq.read_table(stream_path(inputs.folder, "bids"))
    seconds = table["date_time"].to_numpy().astype("datetime64[s]").astype(int)
    auctions = table["auction"].to_numpy()
    windows = {start: set(auctions[seconds // 10 == start]) for start in set(seconds // 10)}
    assert len(windows) == 2
    assert most_keys(inputs.folder, "bids", "auction", 10) == max(map(len, windows.values()))
    assert most_keys(inputs.folder, "bids", "auction", None) == len(set(auctions))


def test_the_keys_of_yahoo_are_the_campaigns(inputs: InputFiles) -> None:
    campaigns = set(campaigns_by_ad(inputs.folder).values())
    assert most_keys(inputs.folder, "events", "campaign_id", None) == len(campaigns) == 100


@pytest.mark.parametrize("zipf", [0.0, 2.0])
def test_skewed_files_have_as_many_rows_and_fewer_frequent_keys(
    zipf: float, tmp_path: Path
) -> None:
    made = write_skewed(tmp_path / "skewed", 27_000, zipf)
    assert made.rows["events"] == 27_000
    assert made.rows["nb_auctions"] == 4 * made.rows["nb_sellers"]
    ads = pq.read_table(stream_path(made.folder, "events"))["ad_id"].to_numpy()
    share = np.unique(ads, return_counts=True)[1].max() / len(ads)
    if zipf:
        assert share == pytest.approx(6 / np.pi**2, abs=0.02)
    else:  # 27 events in the mean of an advertisement; six standard deviations above are 58
        assert share < 58 / 27_000


def test_mapped_files_have_the_columns_that_any_workload_reads(inputs: InputFiles) -> None:
    folder = inputs.folder
    workloads = [workload_named(f"NEXMark {name}") for name in ("5, hot items", "7, highest bid")]
    map_streams(folder, workloads, "mapped")
    map_for_flink(folder, workloads, "mapped")
    with pa.memory_map(str(arrow_path(folder, "bids", "mapped"))) as file:
        mapped = pa.ipc.open_file(file).read_all()
    wanted = pq.read_table(stream_path(folder, "bids"), columns=mapped.column_names)
    assert set(mapped.column_names) == {"auction", "date_time", "bidder", "price", "extra"}
    assert mapped.equals(wanted)
    assert mapped_bytes(folder, "bids", ["auction", "price"], "mapped") == wanted.num_rows * 16
    for name in ("auction", "date_time", "bidder", "price"):
        numbers = np.fromfile(column_path(folder, "bids", name, "numbers"), "<i8")
        assert np.array_equal(numbers, wanted[name].to_numpy().astype(np.int64))
    texts = column_path(folder, "bids", "extra", "texts").read_text()
    ends = np.fromfile(column_path(folder, "bids", "extra", "ends"), "<i8").tolist()
    assert ends[-1] == len(texts)
    found = [texts[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]
    assert found == wanted["extra"].to_pylist()


def test_coded_files_have_the_same_texts_as_codes(inputs: InputFiles) -> None:
    folder = inputs.folder
    workloads = [workload_named("Yahoo, views per campaign")]
    map_streams(folder, workloads, "coded")
    map_for_flink(folder, workloads, "coded")
    with pa.memory_map(str(arrow_path(folder, "events", "coded"))) as file:
        coded = pa.ipc.open_file(file).read_all()
    wanted = pq.read_table(stream_path(folder, "events"), columns=coded.column_names)
    are_coded = [name for name in wanted.column_names if pa.types.is_dictionary(coded[name].type)]
    assert are_coded == ["ad_id", "event_type"]
    assert coded.cast(wanted.schema).equals(wanted)
    codes = np.fromfile(column_path(folder, "events", "event_type", "codes"), "<i8")
    texts = column_path(folder, "events", "event_type.dictionary", "texts").read_text()
    ends = np.fromfile(column_path(folder, "events", "event_type.dictionary", "ends"), "<i8")
    begins = [0, *ends.tolist()]
    found = [texts[begins[code] : begins[code + 1]] for code in codes.tolist()]
    assert found == wanted["event_type"].to_pylist()
