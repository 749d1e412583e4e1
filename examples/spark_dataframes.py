"""Spark DataFrames in and out: Spark prepares the rows, a topology on Ray processes them.

The guard at the end is needed: worker processes may import the script that started them, to find
its classes, and must not start the job again.

Run it by `python examples/spark_dataframes.py`.
"""

import whale_ray as whale
from whale_ray.spark import spark_on_ray


class Totals(whale.Process):
    """Keeps a running total per cab."""

    def open(self, context):
        self.km = {}

    def on_row(self, row, out):
        self.km[row.cab] = self.km.get(row.cab, 0.0) + row.km
        out.emit_row(cab=row.cab, trip=row.trip, total_km=self.km[row.cab])


def main():
    with spark_on_ray("totals") as spark:
        trips = spark.createDataFrame(
            [(1, "a", 3.0), (2, "b", 9.5), (3, "b", 12.0)], "trip int, cab string, km double"
        )
        source = whale.sources.spark(trips.filter("km > 5").orderBy("trip"))

        topology = whale.Topology("totals")
        rows = topology.source(source, id="trips", event_time="trip", event_time_unit="s")
        totals = rows.key_by("cab").process(Totals, id="totals", parallelism=2)
        totals.sink(whale.sinks.spark(), id="out")
        job = whale.submit(topology, workers=2)  # on Ray; returns at once

        frame = job.results("out").to_spark(spark)  # waits for the job
        frame.orderBy("trip").show()


if __name__ == "__main__":
    main()
