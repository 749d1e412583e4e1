"""Clean a CSV file with column expressions: drop malformed lines, filter, compute, write Parquet.

Expressions are checked against the file's columns before the job starts, and run on whole columns.

Run it by `python examples/clean_with_expressions.py [TRIPS.csv [OUTPUT_FOLDER]]`.
"""

import sys
from pathlib import Path

import whale_ray as whale
import whale_ray.functions as F
from whale_ray import col, when

TRIPS = Path(__file__).parent / "data" / "trips.csv"
TYPES = {"cab": "string", "started": "timestamp[s]", "km": "float64", "fare_cents": "int64"}


def main(trips=TRIPS, output="out/clean-trips"):
    topology = whale.Topology("clean-trips")
    source = whale.sources.csv(trips, schema=TYPES)
    rows = topology.source(source, id="trips", on_bad_rows="drop")  # "eight" is no float64
    clean = (
        rows.filter(col("km") > 0, id="moved")
        .with_column("euro_per_km", F.round(col("fare_cents") / 100 / col("km"), 2))
        .with_column("length", when(col("km") < 10, "short").otherwise("long"))
        .select("cab", F.hour("started").alias("hour"), "length", "euro_per_km")
    )
    clean.sink(whale.sinks.parquet(output, overwrite=True), id="out")
    job = whale.run(topology)
    print(job.results("out").to_pandas().to_string(index=False))
    print("left out:", job.metrics().operator("trips").rows_dropped)


if __name__ == "__main__":
    main(*sys.argv[1:])
