"""`python -m whale_ray.lab.bench.peers NAME`: measures one peer, or lists them all."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict

from ....configs.errors import WhaleError
from ....configs.json_text import json_text
from . import all_peers


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return its exit status."""
    peers = {peer.name: peer for peer in all_peers()}
    parser = argparse.ArgumentParser(
        prog="python -m whale_ray.lab.bench.peers", description=__doc__
    )
    parser.add_argument("name", nargs="?", choices=peers, metavar="NAME")
    parser.add_argument("--instances", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument(
        "--batch", type=int, default=0, help="tuples in a message; 0: the usual number"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    parsed = parser.parse_args(arguments)
    if parsed.name is None:
        for peer in peers.values():
            print(f"{peer.name:20} {peer.missing() or peer.what}")
        return 0
    try:
        result = peers[parsed.name].measure(parsed.instances, parsed.seconds, parsed.batch)
    except WhaleError as error:
        print(f"whale-ray: {error}", file=sys.stderr)
        return 1
    if parsed.json:
        print(json_text(asdict(result)))
    else:
        print(f"{result.tuples_per_s:,.0f} tuples/s to {parsed.instances} instances")
        for what, ns in (
            ("source", result.source_cpu_ns_per_tuple),
            ("all", result.cpu_ns_per_tuple),
        ):
            if ns is not None:
                print(f"CPU per tuple, {what}: {ns:,.0f} ns")
        print(result.note)
    return 0


if __name__ == "__main__":
    sys.exit(main())
