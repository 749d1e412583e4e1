"""A source and a sink of one's own, both on SQLite, checked by `whale_ray.testing`.

The source reads a table in parts, which instances share, and goes on from a checkpoint. The sink
publishes all rows in one transaction when the job has ended, and once only, however often `publish`
is called.

Run it by `python examples/own_source_and_sink.py [FOLDER]`.
"""

import json
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import whale_ray as whale
from whale_ray.testing import check_sink, check_source

PARTS = 12  # by which instances share the table: instance i of p reads the parts i, i + p …


class TableSource(whale.sources.Source):
    """The description of the input: pickled and sent to workers, so it holds no connection."""

    def __init__(self, path, table):
        self.path, self.table = str(path), table

    def describe(self):
        return f"SQLite {self.table}"

    def open(self, context):  # the same share for the same instance, in every attempt
        return TableReader(self, context, {str(part): -1 for part in range(PARTS)})

    def open_at(self, context, positions):  # of all instances then, perhaps more or fewer than now
        return TableReader(self, context, {k: n for one in positions for k, n in one.items()})


class TableReader(whale.sources.SourceReader):
    """The open input of one instance: of each of its parts what was not read."""

    def __init__(self, source, context, read):
        mine = range(context.instance, PARTS, context.parallelism)
        self.read_to = {str(part): read[str(part)] for part in mine}
        left = [f"n % {PARTS} = {part} and n > {n}" for part, n in self.read_to.items()]
        where = " or ".join(left) or "false"
        self.database = sqlite3.connect(source.path)
        self.rows = self.database.execute(f"select n from {source.table} where {where} order by n")
        self.ended = False

    def position(self):  # behind the last row that was returned; a checkpoint keeps it
        return dict(self.read_to)

    @property
    def finished(self):
        return self.ended

    def read(self, max_rows):  # returns at once; None would mean: nothing yet
        rows = self.rows.fetchmany(max_rows)
        self.ended = not rows
        self.read_to.update((str(n % PARTS), n) for (n,) in rows)
        return whale.Batch.from_pydict({"n": [n for (n,) in rows]}) if rows else None

    def close(self):
        self.database.close()


class TableSink(whale.sinks.Sink):
    """The description of the output."""

    def __init__(self, path):
        self.path = str(path)

    def describe(self):
        return f"SQLite {self.path}"

    def open(self, context, token):
        return TableWriter(context.instance)

    def publish(self, token, staged):  # all rows at once, and only once for each token
        with closing(sqlite3.connect(self.path)) as database, database:
            database.execute("create table if not exists jobs (token text primary key)")
            database.execute("create table if not exists squares (n integer)")
            if database.execute("insert or ignore into jobs values (?)", [token]).rowcount:
                for part in staged:
                    rows = json.loads(part.payload)
                    database.executemany("insert into squares values (:n)", rows)
        return whale.sinks.SinkResult(rows=sum(part.rows for part in staged))


class TableWriter(whale.sinks.SinkWriter):
    """The rows of one instance, until they are published or dropped."""

    def __init__(self, instance):
        self.instance = instance
        self.rows = []

    def write(self, batch):  # copies: a batch is valid during the call only
        self.rows += batch.to_pylist()

    def stage(self):
        payload = json.dumps(self.rows).encode()
        return whale.sinks.Staged(self.instance, len(self.rows), payload=payload)

    def abort(self):
        self.rows = []


def read_squares(sink):
    """Return the rows that a sink has published."""
    with closing(sqlite3.connect(sink.path)) as database:
        known = database.execute("select name from sqlite_master where name = 'squares'").fetchall()
        return [{"n": n} for (n,) in database.execute("select n from squares")] if known else []


def main(folder="out/squares"):
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(folder / "numbers.db")) as database, database:
        database.execute("drop table if exists numbers")
        database.execute("create table numbers (n integer)")
        database.executemany("insert into numbers values (?)", [(n,) for n in range(100)])

    # Both keep the contract that their base classes describe; an error would say what they do not.
    fresh = (folder / f"check-{number}.db" for number in range(99))
    check_source(lambda: TableSource(folder / "numbers.db", "numbers"))
    batch = whale.Batch.from_pydict({"n": [4, 3, 2, 1]})
    check_sink(lambda: TableSink(next(fresh)), read_squares, batch=batch)

    topology = whale.Topology("squares")
    source = TableSource(folder / "numbers.db", "numbers")
    numbers = topology.source(source, id="numbers", parallelism=2)
    squares = numbers.select((whale.col("n") * whale.col("n")).alias("n"))
    sink = TableSink(folder / "squares.db")
    squares.sink(sink, id="out")
    whale.run(topology)
    print("sum of squares:", sum(row["n"] for row in read_squares(sink)))


if __name__ == "__main__":
    main(*sys.argv[1:])
