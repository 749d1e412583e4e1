"""Word count: read JSON lines, split them into words, count by key, write CSV.

Run it by `python examples/word_count.py [LINES.jsonl [OUTPUT_FOLDER]]`.
"""

import re
import sys
from pathlib import Path

import whale_ray as whale

REVIEWS = Path(__file__).parent / "data" / "reviews.jsonl"


def words(row):
    """Yield one row per word."""
    for word in re.findall(r"\w+", row.text.lower()):
        yield {"word": word}


class Count(whale.Process):
    """Counts the words that this instance owns, and sends the totals on at the end."""

    def open(self, context):
        self.counts = {}

    def on_row(self, row, out):
        self.counts[row.word] = self.counts.get(row.word, 0) + 1

    def close(self, out):
        for word, count in self.counts.items():
            out.emit_row(word=word, count=count)


def main(lines=REVIEWS, output="out/word-count"):
    topology = whale.Topology("word-count")
    reviews = topology.source(whale.sources.json_lines(lines), id="reviews")
    counts = reviews.flat_map(words, id="words").key_by("word").process(Count, parallelism=4)
    counts.sink(whale.sinks.csv(output, overwrite=True), id="out")
    job = whale.run(topology)
    print(job.results("out").to_pandas().sort_values(["count", "word"]).to_string(index=False))


if __name__ == "__main__":
    main(*sys.argv[1:])
