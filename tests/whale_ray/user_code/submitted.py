"""A user's script, as `ray job submit -- python submitted.py` runs it: submits, waits, prints."""

from __future__ import annotations

import json
import sys

from mileage import build

import whale_ray as whale


def main() -> None:
    job = whale.submit(build(whale.sinks.collect()), workers=2)
    rows = job.results("out").to_arrow().to_pylist()
    sys.stdout.write(f"fares {json.dumps({row['cab']: row['cents'] for row in rows})}\n")


if __name__ == "__main__":
    main()
