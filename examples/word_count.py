"""Word count: read JSON lines, split them into words, count by key, write CSV.

Run it by `python examples/word_count.py [LINES.jsonl [OUTPUT_FOLDER]]`.
"""

import re
import sys
from pathlib import Path

import whale_ray as whale
from whale_ray import functions as F

REVIEWS = Path(__file__).parent / "data" / "reviews.jsonl"


def words(row):
    """Yield one row per word."""
    for word in re.findall(r"\w+", row.text.lower()):
        yield {"word": word}


def main(lines=REVIEWS, output="out/word-count"):
    topology = whale.Topology("word-count")
    reviews = topology.source(whale.sources.json_lines(lines), id="reviews")
    by_word = reviews.flat_map(words, id="words").group_by("word")
    # By default a row comes out whenever a count changes; "append": once, at the end of the input.
    counts = by_word.agg(F.count().alias("count"), output_mode="append", parallelism=4)
    counts.sink(whale.sinks.csv(output, overwrite=True), id="out")
    job = whale.run(topology)
    print(job.results("out").to_pandas().sort_values(["count", "word"]).to_string(index=False))


if __name__ == "__main__":
    main(*sys.argv[1:])
