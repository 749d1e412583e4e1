"""What crosses between logical hosts for each row of Yahoo's benchmark, by how it aggregates.

The hosts are processes of this machine that share no memory and are linked by TCP. Each reads a
part of the input. Partitioned, a row that passes the filter is sent to the host that counts its
campaign; by late merge each host sends what it has counted.
"""

from __future__ import annotations

from pathlib import Path

from ....api.submission import submit
from ..report import BenchRow
from .inputs import InputFiles
from .jobs import answer_of_job, build
from .workload import Workload
from .workloads import workload_named

__all__ = ["host_rows"]

HOSTS = (2, 4)
WORKLOAD = "Yahoo, views per campaign"
_WAYS = ("partitioned", "late_merge")


def host_rows(inputs: InputFiles, notes: list[str]) -> list[BenchRow]:
    """Measure the bytes that links carry, on 2 and on 4 hosts; note answers that differ."""
    workload = workload_named(WORKLOAD)
    rows = sum(inputs.rows[name] for name in workload.reads)
    made = []
    for hosts in HOSTS:
        found = {way: _run(workload, inputs.folder, hosts, way) for way in _WAYS}
        if len({answer for _, answer in found.values()}) > 1:
            notes.append(f"{WORKLOAD}, {hosts} hosts: ANOTHER ANSWER: {found}")
        rowwise = found["partitioned"][0]
        made += [
            BenchRow(
                WORKLOAD,
                {"hosts": hosts, "aggregation": way},
                sent / rows,
                "bytes between hosts/row",
                ratio=None if way == "partitioned" else sent / rowwise,
                against="" if way == "partitioned" else "partitioned",
            )
            for way, (sent, _) in found.items()
        ]
    return made


def _run(workload: Workload, folder: Path, hosts: int, way: str) -> tuple[int, object]:
    """Return the bytes that were sent between the hosts, and the answer."""
    settings = {"runtime.hosts": hosts, "runtime.aggregation": way}
    topology = build(workload, folder, instances=hosts, files="mapped")
    job = submit(topology, on="processes", workers=hosts, settings=settings).wait()
    links = [link for relay in job.metrics().relays for link in relay.links]
    return sum(link.bytes_sent for link in links), answer_of_job(workload, job)
