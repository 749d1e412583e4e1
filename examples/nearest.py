"""One-to-many: every request goes to all instances, each of which keeps a part of the cabs.

Positions are partitioned by cab. A request is encoded once and read by every instance, which
offers its nearest cab; a second operator, keyed by request, picks the nearest of these offers. The
first works on columns (numpy arrays), which is faster than on single rows.

Run it by `python examples/nearest.py`.
"""

import numpy as np

import whale_ray as whale

CABS, REQUESTS = 1_000, 200


class Nearest(whale.CoProcess):
    """Left: positions of the cabs of this instance. Right: all requests."""

    def open(self, context):
        self.places = {}

    def on_left(self, batch, out):
        self.places.update(zip(batch["cab"].tolist(), batch["km"].tolist(), strict=True))

    def on_right(self, batch, out):
        if not self.places:
            return
        cabs = np.array(list(self.places))
        away = np.abs(np.array(list(self.places.values())) - batch["at_km"][:, np.newaxis])
        best = np.lexsort((np.broadcast_to(cabs, away.shape), away))[:, 0]
        rows = np.arange(len(best))
        out.emit({"request": batch["request"], "cab": cabs[best], "away_km": away[rows, best]})


class Best(whale.Process):
    """Keeps the best offer for each request."""

    def open(self, context):
        self.best = {}

    def on_row(self, row, out):
        offer = (row.away_km, row.cab)
        self.best[row.request] = min(offer, self.best.get(row.request, offer))

    def close(self, out):
        for request, (away_km, cab) in self.best.items():
            out.emit_row(request=request, cab=cab, away_km=away_km)


def main(on="processes"):
    random = np.random.default_rng(1)
    positions = {
        "t": np.arange(CABS),
        "cab": np.arange(CABS),
        "km": random.uniform(0, 100, CABS),
    }
    requests = {
        "t": np.full(REQUESTS, CABS),
        "request": np.arange(REQUESTS),
        "at_km": random.uniform(0, 100, REQUESTS),
    }
    topology = whale.Topology("nearest")
    timed = {"event_time": "t", "event_time_unit": "s"}
    left = topology.source(table(positions), id="positions", **timed).key_by("cab")
    right = topology.source(table(requests), id="requests", **timed).broadcast()
    offers = left.connect(right).process(Nearest, id="nearest", parallelism=8)
    best = offers.key_by("request").process(Best, id="best", parallelism=2)
    best.sink(whale.sinks.collect(), id="out")
    job = whale.submit(topology, on=on, workers=2).wait()
    frame = job.results("out").to_pandas().sort_values("request")
    print(frame.head().to_string(index=False))
    return frame


def table(columns):
    """Return a source of columns in memory."""
    return whale.sources.arrow(whale.Batch.from_pydict(columns).to_arrow())


if __name__ == "__main__":
    main()
