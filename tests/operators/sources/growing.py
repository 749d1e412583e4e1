"""A folder into which files appear, and the instances that read it, for tests."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import whale_ray as whale
from whale_ray.testing import VirtualClock, instance_context

TYPES = {"n": "int64", "file": "string"}
POLL_NS = 1_000_000_000
TYPES_OF_ARROW = [("n", pa.int64()), ("file", pa.string())]


class Folder:
    """A folder into which files appear, and the instances that read it."""

    def __init__(self, path: Path, parallelism: int = 1, kind: str = "csv", **options: Any) -> None:
        self.path = path
        self.kind = kind
        self.parallelism = parallelism
        types = None if kind == "parquet" else TYPES
        bad = options.pop("on_bad_rows", "fail")
        make: Any = whale.sources.growing_folder
        self.source: whale.sources.Source = make(path, kind, types, **options).with_bad_rows(bad)
        self.clock = VirtualClock()
        self.expected: Counter[tuple[str, int]] = Counter()
        self.seen: list[tuple[str, int]] = []
        self.left_out: Counter[str] = Counter()
        self.readers: list[whale.sources.SourceReader] = []
        self.open()

    def open(self, positions: Sequence[Mapping[str, Any]] | None = None) -> None:
        self.readers = []
        for instance in range(self.parallelism):
            context = instance_context(instance, self.parallelism, clock=self.clock)
            if positions is None:
                self.readers.append(self.source.open(context))
            else:
                self.readers.append(self.source.open_at(context, positions))

    def add(self, name: str, rows: int, time_s: int | None = None) -> Path:
        """Let a file appear by its renaming."""
        suffix = {"csv": "csv", "json_lines": "jsonl", "parquet": "parquet"}[self.kind]
        path = self.path / f"{name}.{suffix}"
        hidden = self.path / f".{path.name}"
        if self.kind == "parquet":
            columns = {"n": pa.array(range(rows), pa.int64()), "file": pa.array([name] * rows)}
            pq.write_table(pa.table(columns, pa.schema(TYPES_OF_ARROW)), hidden, row_group_size=7)
        elif self.kind == "csv":
            hidden.write_text("n,file\n" + "".join(f"{n},{name}\n" for n in range(rows)))
        else:
            lines = (json.dumps({"n": n, "file": name}) for n in range(rows))
            hidden.write_text("".join(f"{line}\n" for line in lines))
        if time_s is not None:
            os.utime(hidden, (time_s, time_s))
        hidden.rename(path)
        self.expected.update((name, n) for n in range(rows))
        return path

    def read(self, instance: int, max_rows: int) -> list[tuple[str, int]]:
        batch = self.readers[instance].read(max_rows)
        rows = [] if batch is None else [(row["file"], row["n"]) for row in batch.to_pylist()]
        self.seen += rows
        return rows

    def read_all(self) -> list[tuple[str, int]]:
        """Read until all instances wait for the next look, and that finds nothing."""
        begin = len(self.seen)
        for instance, reader in enumerate(self.readers):
            self.clock.advance(POLL_NS)
            while self.read(instance, 1000) or reader.next_ready_ns() is None:
                pass
        return self.seen[begin:]

    def restore(self, parallelism: int) -> None:
        positions = self.positions()
        self.close()
        self.parallelism = parallelism
        self.open(positions)

    def positions(self) -> list[Any]:
        return json.loads(json.dumps([reader.position() for reader in self.readers]))

    def close(self) -> None:
        for reader in self.readers:
            self.left_out.update(reader.rejected)
            reader.close()
