"""Positions of sources against a plain model: read a part, go on elsewhere, again and again.

Whatever is read where, by however many instances: every row is read exactly once, one instance
keeps the order, and the counts of rows left out are those of a run that was not interrupted.
"""

from __future__ import annotations

import codecs
import gzip
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import whale_ray as whale
from tests.operators.sources.opened import Opened
from whale_ray.configs.errors import InputError
from whale_ray.operators import sources
from whale_ray.operators.sources.base import Source
from whale_ray.operators.sources.csv_files import CsvSource
from whale_ray.operators.sources.json_lines_files import JsonLinesSource
from whale_ray.operators.sources.units_left import UnitsLeft
from whale_ray.testing import ListSource, Pause, VirtualClock, instance_context

PARALLELISM = st.integers(1, 7)


def batches_of(opened: Opened) -> Iterator[whale.Batch]:
    while not opened.reader.finished:
        batch = opened.reader.read(1000)
        if batch is not None:
            yield batch
        opened.clock.advance(1_000_000)


def in_blocks(source: Source, block_bytes: int) -> Source:
    assert isinstance(source, CsvSource | JsonLinesSource)
    return replace(source, block_bytes=block_bytes)


def read_whole(source: Source) -> tuple[list[str], dict[str, int]]:
    opened = Opened(source, 0, 1)
    rows = list(opened.rest())
    opened.reader.close()
    return rows, dict(opened.reader.rejected)


def check_chain(source: Source, data: st.DataObject) -> None:
    """Read a source by several generations of instances, of which the last reads to the end."""
    rows, rejected = read_whole(source)
    chain = data.draw(st.lists(PARALLELISM, min_size=2, max_size=4), "instances")
    seen: list[str] = []
    left_out: Counter[str] = Counter()
    positions = None
    for generation, parallelism in enumerate(chain, 1):
        opened = [
            Opened(source, instance, parallelism, positions) for instance in range(parallelism)
        ]
        if generation == len(chain):
            for one in opened:
                seen += one.rest(data.draw(st.sampled_from([1, 7, 1000]), "rows per call"))
        else:
            for one in opened:
                for max_rows in data.draw(st.lists(st.integers(1, 40), max_size=4), "reads"):
                    seen += one.read(max_rows)
        positions = [one.position() for one in opened]
        for one in opened:
            left_out.update(one.reader.rejected)
            one.reader.close()
    assert Counter(seen) == Counter(rows)
    assert +left_out == Counter(rejected)
    if set(chain) == {1}:
        assert seen == rows
    after = [Opened(source, instance, 3, positions) for instance in range(3)]
    assert [row for one in after for row in one.rest()] == [], "nothing is left at the end"


# --- units ----------------------------------------------------------------------------------


@given(st.data())
def test_what_is_left_is_divided_into_disjoint_shares(data: st.DataObject) -> None:
    left: set[int] = set(range(400))
    shares = [UnitsLeft.of_share(0, 1)]
    for parallelism in data.draw(st.lists(PARALLELISM, max_size=6)):
        shares = [UnitsLeft.divided(shares, i, parallelism) for i in range(parallelism)]
        units = [list(share.before(400)) for share in shares]
        assert all(one == sorted(one) for one in units)
        assert sorted(unit for one in units for unit in one) == sorted(left)
        for number, own in enumerate(units):
            count = data.draw(st.integers(0, len(own)))
            left -= set(own[:count])
            rest = shares[number].from_count(count)
            assert list(rest.before(400)) == own[count:]
            begin, end = sorted(data.draw(st.tuples(st.integers(0, 400), st.integers(0, 400))))
            mask = rest.mask(begin, end)
            assert [begin + at for at, one in enumerate(mask) if one] == [
                unit for unit in own[count:] if begin <= unit < end
            ]
            shares[number] = UnitsLeft.from_json(json.loads(json.dumps(rest.to_json())))
            assert shares[number] == rest


def test_a_long_backlog_is_divided_among_all_instances() -> None:
    behind = UnitsLeft.of_share(0, 2)
    ahead = UnitsLeft.of_share(1, 2).from_unit(100_001)
    shares = [UnitsLeft.divided([behind, ahead], i, 5) for i in range(5)]
    sizes = [len(list(share.before(100_000))) for share in shares]
    assert sum(sizes) == 50_000
    assert max(sizes) - min(sizes) <= 1


# --- each source ----------------------------------------------------------------------------


@pytest.mark.long
@given(st.data())
def test_parquet_files(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(0, 60), min_size=1, max_size=4), "rows of files")
    group = data.draw(st.integers(1, 30), "rows of a row group")
    with TemporaryDirectory() as folder:
        first = 0
        for number, size in enumerate(sizes):
            table = pa.table({"n": pa.array(range(first, first + size), pa.int64())})
            pq.write_table(table, f"{folder}/{number}.parquet", row_group_size=group)
            first += size
        check_chain(sources.parquet(folder), data)


@pytest.mark.long
@given(st.data())
def test_ipc_files(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(0, 60), min_size=1, max_size=4), "rows of files")
    rows = data.draw(st.integers(1, 30), "rows of a record batch")
    with TemporaryDirectory() as folder:
        first = 0
        for number, size in enumerate(sizes):
            table = pa.table({"n": pa.array(range(first, first + size), pa.int64())})
            new = data.draw(st.sampled_from([pa.ipc.new_file, pa.ipc.new_stream]), "format")
            with new(f"{folder}/{number}.arrow", table.schema) as writer:
                writer.write_table(table, rows)
            first += size
        check_chain(sources.ipc(folder), data)


def text(data: st.DataObject, lines: list[str], header: str, path: Path) -> str:
    """Write lines in some encoding, perhaps compressed; return the encoding."""
    encoding = data.draw(st.sampled_from(["utf-8", "utf-8-sig", "latin-1", "utf-16"]), "encoding")
    end = data.draw(st.sampled_from(["\n", "\r\n"]), "line end")
    last = data.draw(st.sampled_from([end, ""]), "last line's end")
    content = (header + end.join(lines) + last).encode(encoding)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(content))
    else:
        path.write_bytes(content)
    return "utf-8" if encoding == "utf-8-sig" else encoding


@pytest.mark.long
@given(st.data())
def test_csv_files(data: st.DataObject) -> None:
    check_text(
        data,
        sources.csv,
        "csv",
        "n,word\n",
        st.one_of(
            st.integers(0, 99).map(lambda n: f"{n},é{n}"),
            st.integers(0, 99).map(lambda n: f'{n},"two\nlines, {n}"'),
            st.sampled_from(["x,y", "1,2,3", '3,"a"b']),
        ),
    )


@pytest.mark.long
@given(st.data())
def test_json_lines_files(data: st.DataObject) -> None:
    check_text(
        data,
        sources.json_lines,
        "jsonl",
        "",
        st.one_of(
            st.integers(0, 99).map(lambda n: json.dumps({"n": n, "word": f"é{n}"})),
            st.sampled_from(['{"n": "x"}', "[1]", '{"n": 1']),
        ),
    )


def check_text(
    data: st.DataObject,
    make: Callable[..., Source],
    suffix: str,
    header: str,
    line: st.SearchStrategy[str],
) -> None:
    files = data.draw(st.lists(st.lists(line, max_size=25), min_size=1, max_size=3), "files")
    good = '5,"fünf"' if header else '{"n": 5, "word": "fünf"}'
    ending = data.draw(st.sampled_from([suffix, f"{suffix}.gz"]), "suffix")
    learns = data.draw(st.booleans(), "learns its columns")
    with TemporaryDirectory() as folder:
        encodings = {
            text(data, [good, *lines], header, Path(folder) / f"{number}.{ending}")
            for number, lines in enumerate(files[:1])
        }
        (encoding,) = encodings
        for number, lines in enumerate(files[1:], 1):
            content = (header + "\n".join([good, *lines])).encode(encoding)
            path = Path(folder) / f"{number}.{ending}"
            path.write_bytes(gzip.compress(content) if ending.endswith("gz") else content)
        schema = None if learns else {"n": "int64", "word": "string"}
        source = make(folder, schema, encoding=encoding).with_bad_rows("drop")
        block = data.draw(st.sampled_from([64, 200, 1 << 20]), "block")
        check_chain(in_blocks(source, block), data)


@pytest.mark.long
@given(st.data())
def test_tables(data: st.DataObject) -> None:
    chunks = data.draw(st.lists(st.integers(0, 12_000), min_size=1, max_size=4))
    table = pa.concat_tables([pa.table({"n": np.arange(size)}) for size in chunks])
    check_chain(sources.arrow(table), data)


@pytest.mark.long
@given(st.data())
def test_generated_rows(data: st.DataObject) -> None:
    source = sources.poisson(
        data.draw(st.sampled_from([1e6, float("inf")])),
        lambda rows, random: {"n": rows, "x": random.random(len(rows))},
        limit=data.draw(st.integers(0, 5000)),
        seed=data.draw(st.integers(0, 3)),
    )
    check_chain(source, data)


def waiting(rows: Sequence[Any], pauses: Iterator[bool]) -> Iterator[Any]:
    for row in rows:
        if next(pauses):
            yield None
        yield row


@pytest.mark.long
@given(st.data())
def test_rows_of_functions(data: st.DataObject) -> None:
    count = data.draw(st.integers(0, 120), "rows")
    nulls = data.draw(st.integers(0, count), "rows of nulls at first")
    rows: list[dict[str, Any]] = [
        {"n": number, "s": None if number < nulls else f"s{number}"} for number in range(count)
    ]
    learns = nulls < count - 7 and data.draw(st.booleans(), "learns its columns")
    if not learns:
        for number in data.draw(st.sets(st.integers(0, max(0, count - 1)), max_size=4)):
            rows[number : number + 1] = [{"n": "no number", "s": ""}]
    random = data.draw(st.randoms(use_true_random=False))
    pauses = iter(lambda: random.random() < 0.2, None)
    kinds: dict[str, Callable[[], Any]] = {
        "list": lambda: rows,
        "function": lambda: lambda: iter(rows),
        "pausing": lambda: lambda: waiting(rows, pauses),
    }
    kind = data.draw(st.sampled_from([*kinds, "resuming"]), "kind")
    schema = None if learns else {"n": "int64", "s": "string"}
    if kind == "resuming":
        source = sources.iterable(
            lambda: waiting(rows, pauses),
            schema,
            resume=lambda first: waiting(rows[first:], pauses),
        )
    else:
        source = sources.iterable(kinds[kind](), schema)
    check_chain(source.with_bad_rows("drop"), data)


@given(st.data())
def test_rows_listed_for_tests(data: st.DataObject) -> None:
    items: list[Any] = [{"n": number} for number in range(data.draw(st.integers(0, 60)))]
    for at in data.draw(st.lists(st.integers(0, 60), max_size=3)):
        items.insert(min(at, len(items)), Pause(5))
    check_chain(ListSource(items, {"n": "int64"}), data)


# --- what is learnt, and the schedule ----------------------------------------------------------


def test_columns_that_were_learnt_stay(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("n,s\n1,007\n" + "2,x\n" * 10)
    source = in_blocks(sources.csv(path), 8)
    opened = Opened(source, 0, 1)
    first = opened.read(1)
    assert first == ["{'n': 1, 's': '007'}"]
    position = opened.position()
    assert position["columns"] == [["n", "int64"], ["s", "string"]]
    rows = [{"a": None}, {"a": None}, {"a": "x"}, {"a": "y"}]
    learnt = Opened(sources.iterable(rows), 0, 1)
    assert learnt.read(3) == ["{'a': None}", "{'a': None}", "{'a': 'x'}"]
    assert learnt.position()["columns"] == [["a", "string"]]
    only_nulls = rows[:3] + [{"a": None}]
    again = Opened(sources.iterable(only_nulls), 0, 1, [learnt.position()])
    assert again.read(9) == ["{'a': None}"], "the column of nulls is known to be text"


def test_a_generator_goes_on_with_its_schedule() -> None:
    source = sources.poisson(1e3, lambda n, _: {"n": n}, limit=4000, time_column="at")
    whole, _ = read_whole(source)
    rows, positions = [], None
    for count in (700, 1, 900, 1023):
        opened = Opened(source, 0, 1, positions)
        for _ in range(count):
            rows += opened.read(1)
        positions = [opened.position()]
    rows += Opened(source, 0, 1, positions).rest()
    assert rows == whole
    of_three = [Opened(source, i, 3, positions) for i in range(3)]
    reached = np.datetime64(positions[0]["reached_ns"], "ns")
    rest = [batch for one in of_three for batch in batches_of(one)]
    assert all((batch["at"] > reached).all() for batch in rest)
    assert sum(batch.num_rows for batch in rest) == 4000 - 2624


@pytest.mark.parametrize("instances", [(1, 1), (2, 2), (3, 2), (1, 4)])
def test_a_higher_limit_goes_on_behind_the_last_row(instances: tuple[int, int]) -> None:
    rows: list[str] = []
    positions = None
    for parallelism, limit in zip((*instances, 1), (1500, 1700, 4000), strict=True):
        source = sources.poisson(1e6, lambda n, _: {"n": n}, limit=limit)
        opened = [Opened(source, number, parallelism, positions) for number in range(parallelism)]
        rows += [row for one in opened for row in one.rest()]
        positions = [one.position() for one in opened]
        assert sorted(rows) == sorted(repr({"n": number}) for number in range(limit))


@pytest.mark.parametrize("rates", [(10.0, 1000.0), (1000.0, 10.0), (float("inf"), 10.0)])
def test_another_rate_holds_from_the_checkpoint_on(rates: tuple[float, float]) -> None:
    before, since = (sources.poisson(rate, lambda n, _: {"n": n}, limit=4000) for rate in rates)
    opened = Opened(before, 0, 1)
    rows = [opened.read(1)[0] for _ in range(600)]
    clock = VirtualClock(start_ns=10**15)
    again = since.open_at(instance_context(clock=clock), [opened.position()])
    while (ready_ns := again.next_ready_ns()) is not None:
        clock.advance(max(0, ready_ns - clock.monotonic_ns()))
        batch = again.read(1)
        assert batch is not None
        rows += map(repr, batch.to_pylist())
    assert rows == [repr({"n": number}) for number in range(4000)]
    taken_s = (clock.monotonic_ns() - 10**15) / 1e9
    assert taken_s == pytest.approx(3400 / rates[1], rel=0.1)  # five deviations of the sum


def test_downtime_is_not_made_up_for() -> None:
    source = sources.poisson(1e3, lambda n, _: {"n": n}, limit=4000)
    opened = Opened(source, 0, 1)
    opened.read(1)
    clock = VirtualClock(start_ns=10**15)
    again = source.open_at(instance_context(clock=clock), [opened.position()])
    assert again.read(100) is None
    ready_ns = again.next_ready_ns()
    assert ready_ns is not None
    assert 0 < ready_ns - 10**15 < 50_000_000


def test_an_iterator_has_no_position() -> None:
    source = sources.iterable(iter([{"n": 1}]))
    opened = Opened(source, 0, 1)
    assert opened.reader.position() is None
    assert source.resumption() is None
    with pytest.raises(InputError, match=r"pass the function that makes it, iterable\(rows\)"):
        source.open_at(instance_context(), [])
    with pytest.raises(InputError, match="takes resume="):
        sources.iterable([{"n": 1}], resume=lambda first: [])


def test_sources_say_how_they_go_on(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("n\n1\n")
    assert sources.csv(tmp_path).resumption() == "seeks to the block"
    assert (
        sources.csv(tmp_path, encoding="latin-1").resumption() == "reads the file again and skips"
    )
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(b"n\n1\n"))
    assert sources.csv(tmp_path).resumption() == "reads the file again and skips"
    assert sources.iterable(list).resumption() == "makes all rows again and skips"
    assert sources.iterable(list, resume=lambda first: []).resumption() == "seeks to the row"


def test_text_is_not_read_again_before_the_block(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    lines = [b'{"n": %d}\n' % number for number in range(3000)]
    path.write_bytes(codecs.BOM_UTF8 + b"".join(lines))
    source = in_blocks(sources.json_lines(path, {"n": "int64"}), 1000)
    opened = Opened(source, 0, 1)
    rows = [opened.read(1)[0] for _ in range(2500)]
    positions = [opened.position()]
    stat = path.stat()
    damaged = bytearray(path.read_bytes())
    damaged[3:20_000] = b"#" * (20_000 - 3)  # it would be refused if it were read
    path.write_bytes(bytes(damaged))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    rows += Opened(source, 0, 1, positions).rest()
    assert rows == [repr({"n": number}) for number in range(3000)]
