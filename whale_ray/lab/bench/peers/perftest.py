"""perftest, the RDMA community's own programs in C: a server and a client, both on this machine."""

from __future__ import annotations

import subprocess
from shutil import which
from typing import Final

from ....configs.units import MIB
from ....transport.verbs.queue_pair import TIMEOUT

BANDWIDTH: Final = {"read": "ib_read_bw", "write": "ib_write_bw", "send": "ib_send_bw"}
LATENCY: Final = "ib_write_lat"
_LIMIT_S: Final = 120.0


def installed() -> bool:
    """Return whether the programs are installed."""
    return all(which(program) for program in (*BANDWIDTH.values(), LATENCY))


def bandwidth(
    data: str, devices: tuple[str, str], gids: tuple[int, int], nbytes: int, depth: int
) -> float:
    """Return the mean rate in bytes per second of messages, so many under way, for 2 seconds."""
    arguments = ["-s", str(nbytes), "-t", str(depth), "-D", "2"]
    return _run(BANDWIDTH[data], devices, gids, [*arguments, "--output=bandwidth"]) * MIB


def latency_us(devices: tuple[str, str], gids: tuple[int, int], nbytes: int, count: int) -> float:
    """Return the mean time in µs of a WRITE that the peer sees by polling, one way."""
    arguments = ["-s", str(nbytes), "-n", str(max(5, count)), "--output=latency"]
    return _run(LATENCY, devices, gids, arguments)


def _run(
    program: str, devices: tuple[str, str], gids: tuple[int, int], arguments: list[str]
) -> float:
    """Run server and client; return the number that the client prints last."""
    commands = [
        [program, "-d", device, "-x", str(gid), "-F", "-u", str(TIMEOUT), *arguments]
        for device, gid in zip(devices, gids, strict=True)
    ]
    with subprocess.Popen(
        commands[0], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as server:
        try:
            answer = _ask(server, [*commands[1], "127.0.0.1"])
        finally:
            server.terminate()
    try:
        return float(answer.split()[-1])
    except (IndexError, ValueError) as error:
        msg = f"{program} printed no figure but {answer!r}"
        raise RuntimeError(msg) from error


def _ask(server: subprocess.Popen[str], command: list[str]) -> str:
    """Run the client, again while the server is not listening yet."""
    while True:
        client = subprocess.run(
            command, capture_output=True, text=True, timeout=_LIMIT_S, check=False
        )
        if client.returncode == 0:
            return client.stdout
        if server.poll() is not None or "Couldn't connect" not in client.stderr + client.stdout:
            msg = f"{' '.join(command)}: {client.stderr.strip() or client.stdout.strip()}"
            raise RuntimeError(msg)
