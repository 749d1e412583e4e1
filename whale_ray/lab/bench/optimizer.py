"""`whale-ray bench optimizer`: predictions beside measurements, and what the optimizer gains.

Each topology is calibrated in trials, optimized, and run again: with single rows (one a message)
and optimized. Rates are of processor time, since a shared machine's clock says little: what the
busiest worker, or all cores together, can carry. The simulated operators are busy for a given time
(Aeolus, section III), those of Linear Road and of the tweets are real.

Aims: predictions of the optimized topology within 20 % of what is measured; for Linear Road and
tweets ten times the throughput of single rows.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from ...api.topology.functions import columns
from ...configs.settings import Settings
from ...operators.process import Process
from .report import Aim, BenchReport, BenchRow, describe_machine

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from ...operators.process import InstanceContext, Output
    from ...plan.logical import LogicalPlan
    from ...transport.wire.batch import Batch
    from ...tuning.optimizing import CheckedPrediction
    from ...tuning.trials import TrialLength

PARTS = ("simulated", "real")
WORKERS = 2

_ERROR = 0.2
_GAIN = Aim("ratio", "at least", 10)
_SIMULATED = {
    "pipeline": "b: {process: simulated, inputs: [{from: a, grouping: key, by: key}], ppt_us: 5,"
    " row_bytes: 64}\n  c: {sink: simulated, inputs: [{from: b, grouping: shuffle}], ppt_us: 1}",
    "heavy": "b: {process: simulated, inputs: [{from: a, grouping: shuffle}], ppt_us: 100,"
    " row_bytes: 64}\n  c: {sink: simulated, inputs: [{from: b, grouping: global}], ppt_us: 1}",
    "light": "b: {process: simulated, inputs: [{from: a, grouping: key, by: key}], ppt_us: 0.5,"
    " row_bytes: 32}\n  c: {sink: simulated, inputs: [{from: b, grouping: shuffle}], ppt_us: 0.2}",
    "grows": "b: {process: simulated, inputs: [{from: a, grouping: shuffle}], ppt_us: 10,"
    " fan_out: 10, row_bytes: 24}\n  c: {sink: simulated, inputs: [{from: b, grouping: key,"
    " by: key}], ppt_us: 1}",
    "shrinks": "b: {process: simulated, inputs: [{from: a, grouping: key, by: key}], ppt_us: 4,"
    " fan_out: 0.05, row_bytes: 64}\n  c: {sink: simulated, inputs: [{from: b, grouping: global}],"
    " ppt_us: 20}",
    "two readers": "b: {process: simulated, inputs: [{from: a, grouping: shuffle}], ppt_us: 10,"
    " row_bytes: 32}\n  d: {process: simulated, inputs: [{from: a, grouping: key, by: key}],"
    " ppt_us: 20, fan_out: 0.5, row_bytes: 64}\n  e: {sink: simulated, inputs: [{from: b,"
    " grouping: shuffle}], ppt_us: 1}\n  c: {sink: simulated, inputs: [{from: d, grouping: global}]"
    ", ppt_us: 2}",
    "chain of four": "b: {process: simulated, inputs: [{from: a, grouping: key, by: key}],"
    " ppt_us: 3, row_bytes: 64}\n  d: {process: simulated, inputs: [{from: b, grouping: shuffle}],"
    " ppt_us: 6, row_bytes: 64}\n  e: {process: simulated, inputs: [{from: d, grouping: key,"
    " by: key}], ppt_us: 9, row_bytes: 64}\n  c: {sink: simulated, inputs: [{from: e,"
    " grouping: shuffle}], ppt_us: 1}",
    "large rows": "b: {process: simulated, inputs: [{from: a, grouping: key, by: key}], ppt_us: 20,"
    " row_bytes: 2000}\n  c: {sink: simulated, inputs: [{from: b, grouping: shuffle}], ppt_us: 5}",
    "one to many": "b: {process: simulated, inputs: [{from: a, grouping: all}], ppt_us: 40, dop: 4,"
    " ppt_each_us: 2, row_bytes: 64}\n  c: {sink: simulated, inputs: [{from: b, grouping: key,"
    " by: key}], ppt_us: 1}",
}
_HEAD = """tspec: 1
topology: bench
operators:
  a: {source: simulated, rate_per_s: 1000000, rows: 1, dop: 1, ppt_us: 0.5, row_bytes: 64}
  """
_TWEETS, _TWEET_WORDS = 400_000, 12
_TWEET_COPIES = 3
_REPORTS = {"vehicles": 2_000, "minutes": 800}


@dataclass(frozen=True)
class Benched:
    """A topology of the suite: `open` makes it while its input is there."""

    name: str
    open: Callable[[], AbstractContextManager[LogicalPlan]]
    length: TrialLength
    is_the_paper_s: bool = False


@columns
def _words(batch: Batch) -> dict[str, list[str]]:
    return {"word": [word for text in batch["text"] for word in str(text).split()]}


class _Counts(Process):
    """How often each word has come, told for the words of a batch."""

    def open(self, context: InstanceContext) -> None:
        """Begin with none."""
        self._counts: Counter[str] = Counter()

    def on_batch(self, batch: Batch, out: Output) -> None:
        """Count words."""
        words = [str(word) for word in batch["word"]]
        self._counts.update(words)
        seen = list(dict.fromkeys(words))
        out.emit({"word": seen, "count": [self._counts[word] for word in seen]})


def run(*, quick: bool, only: str | None = None) -> BenchReport:
    """Run the suite; `only` is one of `PARTS`."""
    rows: list[BenchRow] = []
    for one in _topologies(only):
        rows += _measured(one, quick=quick)
    command = "whale-ray bench optimizer" + (f" --only {only}" if only else "")
    return BenchReport(
        "optimizer",
        command,
        describe_machine(),
        tuple(rows),
        (
            "value: rows that the sources read per second of processor time.",
            "ratio: of predictions to what was measured, else to single rows.",
            f"load while it ran, at the end: {os.getloadavg()[0]:.1f} runnable processes",
        ),
    )


def _topologies(only: str | None) -> Iterator[Benched]:
    from ...tuning.trials import TrialLength

    if only in (None, "simulated"):
        short = TrialLength(warm_up_s=0.6, measured_s=1.0)
        for name, text in _SIMULATED.items():
            yield Benched(name, partial(_simulated, text), short)
    if only in (None, "real"):
        yield Benched("Linear Road", _linear_road, TrialLength(3.0, 2.0), is_the_paper_s=True)
        yield Benched("tweets", _tweets, TrialLength(2.5, 1.5), is_the_paper_s=True)


def _measured(one: Benched, *, quick: bool) -> Iterator[BenchRow]:
    from ...tuning.calibration import ROUNDS
    from ...tuning.optimizing import OPTIMIZED, SINGLE_ROWS, compare, readable, tune

    settings = Settings()
    batches = (None, 1, 64) if quick else (None, 1, 8, 64)
    rounds = 1 if quick else ROUNDS
    with one.open() as logical, readable(logical, settings) as prepared:
        tuned = tune(prepared, settings, WORKERS, length=one.length, batches=batches, rounds=rounds)
        variants = (SINGLE_ROWS, OPTIMIZED)
        single, best = compare(tuned, variants, latency=False, length=one.length, rounds=rounds)
    for found in (single, best):
        yield _prediction(one, found, has_aim=found is best)
    yield BenchRow(
        one.name,
        {"variant": "optimized"},
        best.measured_per_s,
        "rows/s",
        best.measured_per_s / single.measured_per_s if single.measured_per_s else None,
        "single rows",
        _GAIN if one.is_the_paper_s else None,
        also={
            "rows/s by the clock": best.wall_per_s,
            "rows/s by the clock, single rows": single.wall_per_s,
        },
    )


def _prediction(one: Benched, found: CheckedPrediction, *, has_aim: bool) -> BenchRow:
    """Return a row whose ratio is that of prediction and measurement, the larger to the smaller."""
    pair = (found.predicted_per_s, found.measured_per_s)
    off = max(pair) / min(pair) if min(pair) else None
    return BenchRow(
        one.name,
        {"variant": found.variant},
        found.predicted_per_s,
        "rows/s predicted",
        off,
        "off the measured",
        Aim("ratio", "at most", 1 + _ERROR) if has_aim else None,
        also={
            "measured": found.measured_per_s,
            "error %": found.error * 100,
            "± predicted %": found.predicted_spread * 100,
            "± measured %": found.measured_spread * 100,
        },
    )


@contextmanager
def _simulated(text: str) -> Iterator[LogicalPlan]:
    from ...tspec.building import build_topology
    from ...tspec.reading import parse_tspec

    yield build_topology(parse_tspec(_HEAD + text, "bench")).logical_plan()


@contextmanager
def _linear_road() -> Iterator[LogicalPlan]:
    from ... import sinks, sources
    from ...applications.linear_road.generator import generate
    from ...applications.linear_road.schemas import REPORTS
    from ...applications.linear_road.settings import LinearRoadSettings
    from ...applications.linear_road.topology import build

    with TemporaryDirectory(prefix="whale-ray-") as folder:
        path = generate(Path(folder), LinearRoadSettings(**_REPORTS))
        reports = sources.parquet(str(path), columns=REPORTS.names)
        yield build(reports, sinks.parquet(f"{folder}/out")).logical_plan()


@contextmanager
def _tweets() -> Iterator[LogicalPlan]:
    """Split tweets into words and count them, by word (Aeolus, section III)."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    from ... import sinks, sources
    from ...api.topology import Topology

    draws = np.random.default_rng(1)
    words = np.array([f"word{rank}" for rank in range(5_000)])
    ranks = np.minimum(draws.zipf(1.3, (_TWEETS, _TWEET_WORDS)), len(words)) - 1
    texts = [" ".join(words[row]) for row in ranks]
    with TemporaryDirectory(prefix="whale-ray-") as folder:
        table = pa.table({"text": texts})
        with pq.ParquetWriter(f"{folder}/tweets.parquet", table.schema) as writer:
            for _ in range(_TWEET_COPIES):  # a trial is to end before the input does
                writer.write_table(table)
        topology = Topology("tweets")
        tweets = topology.source(sources.parquet(f"{folder}/tweets.parquet"), id="tweets")
        split = tweets.shuffle().flat_map(_words, id="words")
        counts = split.key_by("word").process(_Counts, id="counts")
        counts.sink(sinks.parquet(f"{folder}/out"), id="out")
        yield topology.logical_plan()
