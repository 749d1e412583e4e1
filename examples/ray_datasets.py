"""Ray Datasets in and out: a topology between two steps of Ray Data.

Run it by `python examples/ray_datasets.py`.
"""

import ray

import whale_ray as whale


class Rank(whale.Process):
    """Numbers the readings of every sensor in the order of their time."""

    def open(self, context):
        self.seen = {}

    def on_row(self, row, out):
        self.seen[row.sensor] = self.seen.get(row.sensor, 0) + 1
        out.emit_row(**row, rank=self.seen[row.sensor])


def main():
    ray.init(log_to_driver=False)
    readings = ray.data.range(100).map(lambda row: {"t": row["id"], "sensor": row["id"] % 3})

    topology = whale.Topology("rank")
    source = whale.sources.ray_dataset(readings)
    rows = topology.source(
        source, id="readings", event_time="t", event_time_unit="s", max_out_of_order_ms=100_000
    )
    ranked = rows.key_by("sensor").process(Rank, id="rank", parallelism=2)
    ranked.sink(whale.sinks.ray_dataset(), id="out")
    job = whale.submit(topology, workers=2)  # on the Ray that this process is connected to

    dataset = job.results("out").to_ray_dataset()  # waits for the job
    print(dataset.groupby("sensor").max("rank").sort("sensor").to_pandas().to_string(index=False))
    ray.shutdown()


if __name__ == "__main__":
    main()
