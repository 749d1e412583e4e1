"""A driver of an endless job in two processes: `python endless_job.py OUT HOSTS`.

Prints "flowing" once rows reach the sink, "draining" when a drain begins, and at the end the state,
the restarts, the rows of the output and its path, or the error.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from typing import Any

import whale_ray as whale
from whale_ray.api.submission import submit


class Copy(whale.Process):
    def on_batch(self, batch: whale.Batch, out: Any) -> None:
        out.emit({"v": batch["v"].copy()})


def numbers() -> Iterator[dict[str, int]]:
    yield from ({"v": i} for i in range(sys.maxsize))


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def report(job: Any) -> None:
    pause = threading.Event()
    while job.metrics().operators == () or job.metrics().operator("out").rows_in == 0:
        pause.wait(0.02)
    say("flowing")
    while job.state == "running":
        pause.wait(0.02)
    if job.state == "draining":
        say("draining")


def main(output: str, hosts: str) -> None:
    topology = whale.Topology("endless")
    source = topology.source(whale.sources.iterable(numbers, bounded=True), id="numbers")
    copies = source.shuffle().process(Copy, id="copy", parallelism=2)
    copies.sink(whale.sinks.parquet(output, overwrite=True), id="out")
    settings = {"runtime.poll_interval_ms": 20, "runtime.hosts": int(hosts)}
    job = submit(topology, on="processes", workers=2, settings=settings)
    threading.Thread(target=report, args=(job,), daemon=True).start()
    try:
        state, results = job.wait().state, job.results("out")
        say(state, job.outcome().restarts, results.rows, results.path)
    except whale.errors.WhaleError as error:
        say(error)


if __name__ == "__main__":
    main(*sys.argv[1:])
