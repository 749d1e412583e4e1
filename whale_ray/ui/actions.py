"""What the page may do beside reading, with its token: end a job, and submit a topology."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import secrets
import signal
import sys
import tempfile
from collections import deque
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Literal, get_args

from ..configs.errors import ResourceError, UsageError
from ..records.folders import REQUEST, is_alive, replace_json
from ..tspec.reading import parse_tspec

__all__ = ["HowToEnd", "Submissions", "ask_for_end", "new_token", "tokens_match"]

HowToEnd = Literal["drain", "cancel", "savepoint"]

_SUBMITTED_MAX = 8
_OUTPUT_LINES_MAX = 200
_LINE_BYTES_MAX = 1 << 16
_DRAIN_TIMEOUT_S = 30.0
"""How long what still runs may drain once the server closes; then it is killed."""


def new_token() -> str:
    """Return a token that cannot be guessed."""
    return secrets.token_urlsafe(24)


def tokens_match(given: str, token: str) -> bool:
    """Whether a token is the right one; takes the same time for each."""
    return hmac.compare_digest(given.encode(), token.encode())


def ask_for_end(folder: Path, how: str) -> None:
    """Ask the job of a run's folder to end; it looks for requests when it takes a sample.

    Raises:
        UsageError: the way is not known, or the job has ended.
    """
    if how not in get_args(HowToEnd):
        msg = f"a job cannot end by {how!r:.40}; there are {', '.join(get_args(HowToEnd))}"
        raise UsageError(msg)
    if not is_alive(folder):
        msg = f"job {folder.name} has ended"
        raise UsageError(msg)
    replace_json(folder / REQUEST, {"end": how})


class Submissions:
    """Topologies that were submitted here: each runs in a process of its own, until it ends."""

    def __init__(self) -> None:
        self._running: dict[int, asyncio.Task[None]] = {}
        self._processes: dict[int, asyncio.subprocess.Process] = {}
        self.output: deque[str] = deque(maxlen=_OUTPUT_LINES_MAX)
        """The last lines that they wrote, as a rule why one could not begin."""

    async def submit(self, text: str, workers: int) -> int:
        """Run a topology on processes of this machine; return the number of its process.

        Raises:
            InputError: the text is no topology.
            ResourceError: too many that were submitted run already.
        """
        name = parse_tspec(text, "the topology").name
        if len(self._running) >= _SUBMITTED_MAX:
            msg = f"{_SUBMITTED_MAX} topologies that were submitted here run already; end one"
            raise ResourceError(msg)
        folder = Path(tempfile.mkdtemp(prefix="whale-ray-submitted-"))
        path = folder / "topology.yaml"
        path.write_text(text, encoding="utf-8")
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "whale_ray.cli.main", "run", str(path)),
            *("--on", "processes", "--workers", str(workers)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            limit=_LINE_BYTES_MAX,
        )
        self._processes[process.pid] = process
        self._running[process.pid] = asyncio.create_task(self._follow(process, name, folder))
        return process.pid

    async def close(self, drain_timeout_s: float = _DRAIN_TIMEOUT_S) -> None:
        """End what still runs: it was this server's. What has not drained in time is killed."""
        followed = list(self._running.values())
        self._signal(signal.SIGTERM)  # which drains them
        if followed:
            await asyncio.wait(followed, timeout=drain_timeout_s)
        self._signal(signal.SIGKILL)
        await asyncio.gather(*followed, return_exceptions=True)

    def _signal(self, number: signal.Signals) -> None:
        for process in self._processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)

    async def _follow(self, process: asyncio.subprocess.Process, name: str, folder: Path) -> None:
        assert process.stdout is not None
        try:
            async for line in _lines(process.stdout):
                self.output.append(f"{name}: {line}")
            code = await process.wait()
            self.output.append(f"{name}: ended with exit code {code}")
        finally:
            (folder / "topology.yaml").unlink(missing_ok=True)
            folder.rmdir()
            self._processes.pop(process.pid, None)
            self._running.pop(process.pid, None)


async def _lines(output: asyncio.StreamReader) -> AsyncIterator[str]:
    """Read lines until the end; what is longer than a line may be is left out, and said so."""
    while True:
        try:
            line = await output.readline()
        except ValueError:
            yield f"(more than {_LINE_BYTES_MAX:,} bytes without a new line are left out)"
            continue
        if not line:
            return
        yield line.decode(errors="replace").rstrip()
