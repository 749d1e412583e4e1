"""Split tweets into words, and count by word as they come (Aeolus' demonstration).

Run it by `python examples/tweets.py`, which prints the most frequent words. `whale-ray run` and
`whale-ray optimize` take examples/tweets.py:topology, and examples/tweets.py:one_by_one, whose
author let every word be sent at once. If there are no tweets in out/, some are made, of words as
frequent as a language's (Zipf).
"""

import collections
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import whale_ray as whale

TWEETS = "out/tweets.parquet"
WORDS_PER_TWEET, LANGUAGE = 12, 5000


def make(count, path=TWEETS):
    """Write so many tweets of random words."""
    draws = np.random.default_rng(1)
    names = np.array([f"word{rank}" for rank in range(LANGUAGE)])
    ranks = np.minimum(draws.zipf(1.3, (count, WORDS_PER_TWEET)), LANGUAGE) - 1
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"text": [" ".join(row) for row in names[ranks]]}), path)


@whale.columns
def words(batch):
    """Return a row per word of all tweets of a batch."""
    return {"word": [word for text in batch["text"] for word in str(text).split()]}


class Count(whale.Process):
    """Counts the words that this instance owns, and tells each count as it changes."""

    def open(self, context):
        self.counts = collections.Counter()

    def on_batch(self, batch, out):
        seen = collections.Counter(map(str, batch["word"]))
        self.counts.update(seen)
        out.emit({"word": list(seen), "count": [self.counts[word] for word in seen]})


def build(name, rows_together=None):
    """Return the topology; with a number, no more rows than that are sent together."""
    topology = whale.Topology(name)
    tweets = topology.source(whale.sources.parquet(TWEETS), id="tweets")
    split = together(tweets.shuffle(), rows_together).flat_map(words, id="words")
    counts = together(split.key_by("word"), rows_together).process(Count, id="counts")
    together(counts, rows_together).sink(
        whale.sinks.parquet(f"out/{name}", overwrite=True), id="out"
    )
    return topology


def together(stream, rows):
    return stream if rows is None else stream.in_batches_of(rows)


if not Path(TWEETS).is_file():
    make(int(os.environ.get("TWEETS", "20000")))  # how many
topology = build("tweets")
one_by_one = build("one-by-one", rows_together=1)


def main():
    job = whale.run(topology)
    last = job.results("out").to_pandas().groupby("word")["count"].max()
    for word, times in last.sort_values(ascending=False).head(5).items():
        print(word, times)


if __name__ == "__main__":
    main()
