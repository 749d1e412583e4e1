"""What the page may do beside reading, with its token: end or rescale a job, submit a topology."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import os
import secrets
import shutil
import signal
import sys
import tempfile
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any, Literal, get_args

from ..configs.errors import ResourceError, UsageError
from ..configs.loading import environment_name
from ..records.folders import REQUEST, is_alive, replace_json
from ..tspec.reading import parse_tspec
from .rescaling import Rescale

__all__ = ["EndOf", "HowToEnd", "Submissions", "ask_for_end", "new_token", "tokens_match"]

HowToEnd = Literal["drain", "cancel", "savepoint"]

_SUBMITTED_MAX = 8
_OUTPUT_LINES_MAX = 200
_LINE_BYTES_MAX = 1 << 16
_DRAIN_TIMEOUT_S = 30.0
"""How long what still runs may drain once the server closes; then it is killed."""
_END_POLL_S = 0.1

EndOf = Callable[[Path], "dict[str, Any] | None"]
"""Tells how the job of a record ended; None while it runs."""


def new_token() -> str:
    """Return a token that cannot be guessed."""
    return secrets.token_urlsafe(24)


def tokens_match(given: str, token: str) -> bool:
    """Whether a token is the right one; takes the same time for each."""
    # Bytes of a header that are no text stand as surrogates.
    return hmac.compare_digest(given.encode(errors="surrogateescape"), token.encode())


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
    """Jobs that were started here: each runs in a process of its own, until it ends."""

    def __init__(self, runs: Path) -> None:
        """Take the folder that their records are kept in, the one that the page shows."""
        self._environment = {**os.environ, environment_name("records.folder"): str(runs)}
        self._closes = False
        self._running: set[asyncio.Task[None]] = set()
        self._processes: dict[int, asyncio.subprocess.Process] = {}
        self._rescaled: set[Path] = set()
        self.output: deque[str] = deque(maxlen=_OUTPUT_LINES_MAX)
        """The last lines that they wrote, as a rule why one could not begin."""

    async def submit(self, text: str, workers: int) -> None:
        """Run a topology on processes of this machine; its text is parsed in a thread.

        Raises:
            InputError: the text is no topology.
            ResourceError: too many that were started here run already, or the server ends.
        """
        spec = await asyncio.to_thread(parse_tspec, text, "the topology")
        self._check_room()
        self._follow(self._run_topology(spec.name, text, workers))

    def rescale(self, folder: Path, wanted: Rescale, end_of: EndOf) -> None:
        """Stop a job with a savepoint, then go on from it.

        Args:
            folder: of the job's record.
            wanted: with what it goes on, which was checked.
            end_of: tells how the job ended, once it has.

        Raises:
            UsageError: the job has ended, or was asked for this before: it goes on once.
            ResourceError: too many that were started here run already.
        """
        self._check_room()
        if folder in self._rescaled:
            msg = f"job {folder.name} stops already, and goes on from its savepoint"
            raise UsageError(msg)
        ask_for_end(folder, "savepoint")
        self._rescaled.add(folder)
        self._follow(self._stop_and_resume(folder, wanted, end_of))

    async def close(self, drain_timeout_s: float = _DRAIN_TIMEOUT_S) -> None:
        """End what still runs: it was this server's. What has not drained in time is killed."""
        self._closes = True
        followed = list(self._running)
        self._signal(signal.SIGTERM)  # which drains them
        if followed:
            await asyncio.wait(followed, timeout=drain_timeout_s)
        self._signal(signal.SIGKILL)
        await asyncio.gather(*followed, return_exceptions=True)

    def _check_room(self) -> None:
        if self._closes:
            msg = "this server ends, so nothing is started any more"
            raise ResourceError(msg)
        if len(self._running) >= _SUBMITTED_MAX:
            msg = f"{_SUBMITTED_MAX} jobs that were started here run already; end one"
            raise ResourceError(msg)

    def _follow(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    def _signal(self, number: signal.Signals) -> None:
        for process in self._processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)

    async def _run_topology(self, name: str, text: str, workers: int) -> None:
        folder = Path(tempfile.mkdtemp(prefix="whale-ray-submitted-"))
        try:
            path = folder / "topology.yaml"
            path.write_text(text, encoding="utf-8")
            how = ("--on", "processes", "--workers", str(workers))
            await self._run(name, "run", str(path), *how)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    async def _stop_and_resume(self, folder: Path, wanted: Rescale, end_of: EndOf) -> None:
        name = folder.name
        while (end := end_of(folder)) is None:
            if self._closes:
                self.output.append(f"{name}: stops, and is not resumed: this server ended")
                return
            await asyncio.sleep(_END_POLL_S)
        self._rescaled.discard(folder)  # it has ended, so nobody can ask any more
        if end.get("state") != "stopped":
            self.output.append(f"{name}: {end.get('state')} before its savepoint was complete")
            return
        place = str(end["checkpoint"])
        if await self._run(name, "resume", place, *wanted.options):
            self.output.append(f"{name}: resume it unchanged with: whale-ray resume {place}")

    async def _run(self, name: str, *words: str) -> int:
        """Run a command of whale-ray to its end, keep what it writes, and return its exit code."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "whale_ray.cli.main", *words),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=self._environment,
            limit=_LINE_BYTES_MAX,
        )
        assert process.stdout is not None
        self._processes[process.pid] = process
        try:
            async for line in _lines(process.stdout):
                self.output.append(f"{name}: {line}")
            code = await process.wait()
            self.output.append(f"{name}: ended with exit code {code}")
            return code
        finally:
            del self._processes[process.pid]


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
