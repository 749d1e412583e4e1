"""Lists and maps of keys against Python's own, by key."""

from __future__ import annotations

import datetime
import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import whale_ray as whale
from tests.whale_ray.api.opened_processes import KeptRows, opened
from whale_ray import state
from whale_ray.errors import InputError, UsageError
from whale_ray.transport.wire.batch import Batch


@dataclass(frozen=True)
class Kinds:
    """Types of a list and a map, and what stands for a number in them."""

    item: str
    key: str
    value: str
    item_of: Callable[[int], Any]
    key_of: Callable[[int], Any]
    value_of: Callable[[int], Any]


NUMBERS = Kinds("double", "int64", "int32", float, int, lambda n: 2 * n)
TEXTS = Kinds(
    *("string", "large_string", "binary"),
    lambda n: "ä" * max(n, 0),
    lambda n: "ö" * 40 * n,  # the longest exceeds what is looked up without an allocation
    bytes,
)
BYTES = Kinds("binary", "binary", "string", lambda n: b"\0" * abs(n), bytes, str)


def kept_of(kinds: Kinds) -> type[Any]:
    """Return a process that does what each row says, and notes what is kept then."""

    class Kept(whale.KeyedProcess):
        items = state.list(kinds.item)
        seen = state.map(kinds.key, kinds.value)

        def open(self, context: Any) -> None:
            super().open(context)
            self.notes: list[Any] = []

        def on_row(self, row: Any, out: whale.Output) -> None:
            key = kinds.key_of(row.n)
            match row.do:
                case "append":
                    self.items.append(kinds.item_of(row.n))
                case "replace" if len(self.items):
                    self.items[row.n % len(self.items)] = kinds.item_of(-1)
                case "clear items":
                    self.items.clear()
                case "set":
                    self.seen[key] = kinds.value_of(row.n)
                case "pop":
                    self.seen.pop(key)
                case "delete" if key in self.seen:
                    del self.seen[key]
                case "clear":
                    self.clear()
            assert len(self.seen) == len(self.seen.keys())
            assert sorted(self.seen) == sorted(self.seen.keys())
            seen = dict(self.seen.items())
            self.notes.append((row.k, self.items.get(), seen, self.seen.get(key)))

    return Kept


actions = st.sampled_from(
    ["append", "append", "replace", "clear items", "set", "set", "set", "pop", "delete", "clear"]
)
rows_of_actions = st.lists(
    st.tuples(st.sampled_from("ab"), actions, st.integers(0, 6)), min_size=1, max_size=60
)


def feed(process: Any, rows: list[dict[str, Any]]) -> None:
    process.on_batch(Batch.from_rows(rows), KeptRows())
    process.deadline_ns()


@pytest.mark.parametrize("kinds", [NUMBERS, TEXTS, BYTES], ids=["numbers", "texts", "bytes"])
@settings(max_examples=40, deadline=None)
@given(rows=rows_of_actions, batch_rows=st.integers(1, 9))
def test_lists_and_maps_are_those_of_python(kinds: Kinds, rows: list[Any], batch_rows: int) -> None:
    process: Any = opened(kept_of(kinds))
    named = [dict(zip(("k", "do", "n"), row, strict=True)) for row in rows]
    for first in range(0, len(rows), batch_rows):
        feed(process, named[first : first + batch_rows])
    items: dict[str, list[Any]] = defaultdict(list)
    seen: dict[str, dict[Any, Any]] = defaultdict(dict)
    expected = []
    for key, do, n in rows:
        at = kinds.key_of(n)
        if do == "append":
            items[key].append(kinds.item_of(n))
        elif do == "replace" and items[key]:
            items[key][n % len(items[key])] = kinds.item_of(-1)
        elif do == "set":
            seen[key][at] = kinds.value_of(n)
        elif do in ("pop", "delete"):
            seen[key].pop(at, None)
        if do in ("clear items", "clear"):
            items[key] = []
        if do == "clear":
            seen[key] = {}
        expected.append((key, list(items[key]), dict(seen[key]), seen[key].get(at)))
    assert process.notes == expected
    kept = sum(bool(items[key] or seen[key]) for key in "ab")
    assert len(process._state.store) == kept
    entries = process.seen._entries.store, process.seen._order.store, process.items._entries.store
    sizes = (
        sum(map(len, seen.values())),
        sum(map(len, seen.values())),
        sum(map(len, items.values())),
    )
    assert tuple(map(len, entries)) == sizes


def test_keys_and_values_of_times() -> None:
    day = datetime.date(2024, 2, 29)
    moment = datetime.datetime(2024, 2, 29, 1, 2, 3, 4, tzinfo=datetime.UTC)

    class Days(whale.KeyedProcess):
        last = state.map("date32", "timestamp[us, tz=UTC]")

        def on_row(self, row: Any, out: whale.Output) -> None:
            assert day not in self.last
            self.last[day] = moment
            assert self.last[day] == moment and list(self.last) == [day]
            assert self.last.values() == [moment]
            with pytest.raises(KeyError):
                del self.last[datetime.date(1970, 1, 1)]

    feed(opened(Days), [{"k": 1}])


def test_entries_of_other_types_are_refused() -> None:
    class Wrong(whale.KeyedProcess):
        items = state.list("int64")
        seen = state.map("int64", "double")

        def on_row(self, row: Any, out: whale.Output) -> None:
            with pytest.raises(IndexError, match="'items' has 0 values, none at 3"):
                self.items[3]
            with pytest.raises(UsageError, match="'items' keeps values of int64, not 'x'"):
                self.items.append("x")
            with pytest.raises(UsageError, match="'seen' has keys of int64, not 1.5: pass a whole"):
                self.seen[1.5] = 1.0
            with pytest.raises(UsageError, match="'seen' keeps values of float64, not None"):
                self.seen[1] = None
            assert self.items.get() == [] and 1 not in self.seen and len(self.seen) == 0

    operator = opened(Wrong)
    feed(operator, [{"k": 1}])
    sealed = [chunk.rows.num_rows for chunk in operator.chunks(1)]
    assert sum(sealed) == 0, "what was refused leaves no entry, and so no key"
    with pytest.raises(InputError, match="state.map does not keep float64"):
        state.map("double", "int64")
    with pytest.raises(InputError, match=r"state.list does not keep decimal128"):
        state.list("decimal128(9, 2)")


def test_other_values_than_text_and_bytes_are_refused_where_these_are_kept() -> None:
    class Wrong(whale.KeyedProcess):
        words = state.list("string")
        named = state.map("string", "binary")
        by_bytes = state.map("binary", "string")
        text = state.value("string")

        def on_row(self, row: Any, out: whale.Output) -> None:
            for wrong in (b"x", 1, "\ud800"):  # half of a pair of surrogates
                with pytest.raises(UsageError, match="'words' keeps values of string, not"):
                    self.words.append(wrong)
                with pytest.raises(UsageError, match="'named' has keys of string, .*: pass a str"):
                    self.named[wrong] = b""
                with pytest.raises(UsageError, match="'text' keeps values of string, not"):
                    self.text.set(wrong)
            with pytest.raises(UsageError, match="'named' keeps values of binary, not 'x'"):
                self.named["a"] = "x"
            with pytest.raises(UsageError, match="'by_bytes' has keys of binary, .*: pass bytes"):
                self.by_bytes.get("x")
            self.by_bytes[bytearray(b"a")] = "b"
            assert self.by_bytes.items() == [(b"a", "b")]
            self.by_bytes.clear()
            assert not self.words and not self.named

    feed(opened(Wrong), [{"k": 1}])


@pytest.mark.parametrize("filled", [False, True])
def test_keys_of_other_types_are_refused_and_all_integers_taken(filled: bool) -> None:
    class Keys(whale.KeyedProcess):
        seen = state.map("int64", "int64")
        days = state.map("date32", "int64")

        def on_row(self, row: Any, out: whale.Output) -> None:
            if filled:
                self.seen[np.int32(3)] = 7
                self.days[datetime.date(2024, 2, 29)] = 1
                assert self.seen.keys() == [3] and type(self.seen.keys()[0]) is int
                assert np.int64(3) in self.seen and self.seen[np.uint8(3)] == 7
            else:
                assert np.int64(3) not in self.seen
            for wrong in ("x", 3.0, None, 1 << 63):
                for call in (self.seen.get, self.seen.__contains__, self.seen.__delitem__):
                    with pytest.raises(UsageError, match="'seen' has keys of int64, not .*: pass"):
                        call(wrong)
            with pytest.raises(UsageError, match="not 5: pass a datetime.date"):
                self.days.get(5)

    feed(opened(Keys), [{"k": 1}])


def test_only_true_and_false_are_booleans_and_no_number_becomes_infinite() -> None:
    class Kept(whale.KeyedProcess):
        on = state.value("bool")
        all_on = state.list("bool")
        by_number = state.map("int64", "bool")
        size = state.value("float32")
        sizes = state.list("float32")

        def on_row(self, row: Any, out: whale.Output) -> None:
            for wrong in ("false", 0, 1.0, np.int8(1), [0]):
                with pytest.raises(UsageError, match="'on' keeps values of bool, not"):
                    self.on.set(wrong)
                with pytest.raises(UsageError, match="'all_on' keeps values of bool, not"):
                    self.all_on.append(wrong)
                with pytest.raises(UsageError, match="'by_number' keeps values of bool, not"):
                    self.by_number[1] = wrong
            for right in (True, np.False_):
                self.on.set(right)
                self.all_on.append(right)
                assert self.on.get() is bool(right)
            assert self.all_on.get() == [True, False]
            for wrong in (1e300, -3.5e38, np.float64(1e39)):
                with pytest.raises(UsageError, match="'size' leaves its type float32 with .*wider"):
                    self.size.set(wrong)
                with pytest.raises(UsageError, match="'sizes' keeps values of float32, not"):
                    self.sizes.append(wrong)
            with pytest.raises(UsageError, match="'size' keeps values of float32, not 'x'"):
                self.size.set("x")
            for right in (3.4028235e38, -math.inf, 5, np.float32(1.5)):
                self.size.set(right)
                assert self.size.get() == np.float32(right)
            self.size.set(math.nan)
            assert math.isnan(self.size.get())

    feed(opened(Kept), [{"k": 1}])
