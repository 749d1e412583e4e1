"""One system in a process of its own: its workloads one after another, each cold, then warm.

`python -m whale_ray.lab.bench.streaming SYSTEM FOLDER REPETITIONS WORKLOAD…` prints one JSON
object, with a `Measured` for each workload.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

from ..peers.base import end_with_parent
from .systems import system_named
from .timing import measure


def main(arguments: list[str]) -> None:
    """Measure one system's workloads."""
    end_with_parent()
    name, folder, repetitions, *workloads = arguments
    system = system_named(name)
    found = {
        workload: asdict(measure(system.runner(workload, Path(folder)), int(repetitions)))
        for workload in workloads
    }
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
