"""The page's server: what it answers, and to whom.

It listens on the loopback alone, and answers only requests that name it so (a page of a stranger
whose name leads here is refused) and come from its own page, or from none. It only reads: what
changes anything needs the token, which is printed where the server was started. Everything is JSON;
the browser makes text of it, never HTML.
"""

from __future__ import annotations

import asyncio
import errno
import json
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from aiohttp import web

from ..configs.errors import ResourceError, WhaleError
from ..configs.settings import RecordSettings
from ..records.folders import RunFolders
from ..transport.clock import Clock
from . import specs
from .actions import Submissions, ask_for_end, tokens_match
from .rescaling import check_rescale, rescale_of
from .run_reader import HistoryTail, RunReader

__all__ = ["LOOPBACK", "STATIC", "TOKEN_HEADER", "UiServer"]

LOOPBACK = "127.0.0.1"
TOKEN_HEADER = "X-Whale-Ray-Token"  # the header's name, not a token

STATIC = Path(__file__).with_name("static")
_OWN_NAME = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:\d{1,5})?", re.IGNORECASE)
_POLL_S = 0.5
_BODY_BYTES_MAX = 1024 * 1024
_FRAMES = "http://localhost:* http://127.0.0.1:*"
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none'; "
        f"frame-ancestors 'self' {_FRAMES}"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class UiServer:
    """Answers browsers about the runs below one folder."""

    def __init__(
        self, settings: RecordSettings, clock: Clock, token: str, static: Path = STATIC
    ) -> None:
        """Take the token that actions need, and where the browser's part is.

        Raises:
            ResourceError: the browser's part was not built.
        """
        self._static = static
        if not (static / "index.html").is_file():
            msg = f"the page is not built: {static / 'index.html'} is missing; run `make ui`"
            raise ResourceError(msg)
        folders = RunFolders(settings)
        self._reader = RunReader(folders, clock, settings.interval_ms or 1000)
        self._token = token
        self._submissions = Submissions(folders.root)

    def application(self) -> web.Application:
        """Return what a server of aiohttp runs."""
        application = web.Application(middlewares=[_guard], client_max_size=_BODY_BYTES_MAX)
        add = application.router
        add.add_get("/", self._index)
        add.add_get("/api/jobs", self._jobs)
        add.add_get("/api/events", self._job_events)
        add.add_get("/api/jobs/{job}", self._job)
        add.add_get("/api/jobs/{job}/events", self._run_events)
        add.add_post("/api/jobs/{job}/end", self._end)
        add.add_post("/api/jobs/{job}/rescale", self._rescale)
        add.add_post("/api/topology", self._topology)
        add.add_post("/api/optimization", self._optimization)
        add.add_post("/api/optimizer-log", self._optimizer_log)
        add.add_post("/api/submissions", self._submit)
        add.add_get("/api/submissions", self._submitted)
        add.add_static("/assets", self._static / "assets")
        application.on_shutdown.append(self._shut_down)
        return application

    async def _shut_down(self, _application: web.Application) -> None:
        await self._submissions.close()

    # --- what is read ---------------------------------------------------------------------------

    async def _index(self, _request: web.Request) -> web.StreamResponse:
        return web.FileResponse(self._static / "index.html")

    async def _jobs(self, _request: web.Request) -> web.StreamResponse:
        return web.json_response(self._reader.jobs())

    async def _job(self, request: web.Request) -> web.StreamResponse:
        folder = self._folder(request)
        _, lines = self._reader.history(folder, HistoryTail())
        return web.json_response(
            {
                "job": self._reader.description(folder),
                "now": self._reader.now(folder),
                "history": lines,
            }
        )

    async def _job_events(self, request: web.Request) -> web.StreamResponse:
        """Send the list of jobs whenever it changes."""
        stream = await _begin_events(request)
        last = None
        while True:
            jobs = self._reader.jobs()
            if jobs != last:
                await _send(stream, "jobs", jobs)
                last = jobs
            await asyncio.sleep(_POLL_S)

    async def _run_events(self, request: web.Request) -> web.StreamResponse:
        """Send each new sample of a job, and each new line of its history."""
        folder = self._folder(request)
        stream = await _begin_events(request)
        tail, last = HistoryTail(), None
        while True:
            now = self._reader.now(folder)
            if now != last and now is not None:
                await _send(stream, "now", now)
                last = now
            anew, lines = self._reader.history(folder, tail)
            if lines:
                await _send(stream, "history", {"anew": anew, "lines": lines})
            await asyncio.sleep(_POLL_S)

    # --- topologies and the optimizer -----------------------------------------------------------

    async def _topology(self, request: web.Request) -> web.StreamResponse:
        return await _answer_of(specs.drawn_topology, request)

    async def _optimization(self, request: web.Request) -> web.StreamResponse:
        return await _answer_of(specs.optimized, request)

    async def _optimizer_log(self, request: web.Request) -> web.StreamResponse:
        return await _answer_of(specs.drawn_log, request)

    # --- actions --------------------------------------------------------------------------------

    async def _end(self, request: web.Request) -> web.StreamResponse:
        self._check_token(request)
        asked = await _json(request)
        ask_for_end(self._folder(request), str(asked.get("how")))
        return web.json_response({})

    async def _rescale(self, request: web.Request) -> web.StreamResponse:
        self._check_token(request)
        wanted = rescale_of(await _json(request))
        folder = self._folder(request)
        described = self._reader.description(folder)
        if described is None:
            raise _refusal(web.HTTPNotFound, f"job {folder.name} was removed")
        await asyncio.to_thread(check_rescale, described, wanted)  # may read from far
        self._submissions.rescale(folder, wanted, self._reader.end)
        return web.json_response({})

    async def _submit(self, request: web.Request) -> web.StreamResponse:
        self._check_token(request)
        asked = await _json(request)
        workers = asked.get("workers", 2)
        if not isinstance(workers, int) or not 1 <= workers <= 4096:
            raise _refusal(web.HTTPBadRequest, "workers must be a number from 1 to 4,096")
        await self._submissions.submit(str(asked.get("text", "")), workers)
        return web.json_response({})

    async def _submitted(self, _request: web.Request) -> web.StreamResponse:
        return web.json_response(list(self._submissions.output))

    def _check_token(self, request: web.Request) -> None:
        if not tokens_match(request.headers.get(TOKEN_HEADER, ""), self._token):
            why = "this needs the token that `whale-ray ui` printed: open the page by that address"
            raise _refusal(web.HTTPForbidden, why)

    def _folder(self, request: web.Request) -> Path:
        job = request.match_info["job"]
        folder = self._reader.folders.of(job)
        if folder is None:
            raise _refusal(web.HTTPNotFound, f"there is no job {job!r:.80}, or it was removed")
        return folder


@web.middleware
async def _guard(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse strangers; make errors one line; add the headers for safety."""
    try:
        _refuse_strangers(request)
        response = await handler(request)
    except ConnectionResetError:  # the browser left while it was sent events
        return web.Response(status=499)
    except WhaleError as error:
        response = web.json_response({"error": str(error)}, status=400)
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        response = web.json_response({"error": "no file has so long a name"}, status=404)
    except web.HTTPException as error:
        error.headers.update(_HEADERS)
        raise
    if not response.prepared:
        response.headers.update(_HEADERS)
    return response


def _refuse_strangers(request: web.Request) -> None:
    """Refuse who names another host, in whatever way, and the script of another page."""
    named = request.rel_url.host or request.host
    if not (_OWN_NAME.fullmatch(request.host) and _OWN_NAME.fullmatch(named)):
        raise _refusal(web.HTTPForbidden, f"this page is at {LOOPBACK} alone, not at {named!r:.80}")
    origin = request.headers.get("Origin", f"http://{request.host}")
    if origin.lower() != f"http://{request.host}".lower():
        raise _refusal(web.HTTPForbidden, f"only this page may ask, not one of {origin!r:.80}")


def _refusal(kind: type[web.HTTPException], why: str) -> web.HTTPException:
    return kind(text=json.dumps({"error": why}), content_type="application/json")


async def _text(request: web.Request) -> str:
    """Return the body, which is in UTF-8 whatever its header says."""
    try:
        return (await request.read()).decode()
    except UnicodeDecodeError as error:
        raise _refusal(web.HTTPBadRequest, "expected text in UTF-8") from error


async def _answer_of(compute: Callable[[str], Any], request: web.Request) -> web.StreamResponse:
    """Answer with what is computed of the body, in a thread: it may take seconds."""
    return web.json_response(await asyncio.to_thread(compute, await _text(request)))


async def _json(request: web.Request) -> dict[str, Any]:
    try:
        asked = json.loads(await _text(request))
    except (ValueError, RecursionError) as error:
        raise _refusal(web.HTTPBadRequest, "expected JSON") from error
    if not isinstance(asked, dict):
        raise _refusal(web.HTTPBadRequest, "expected a JSON object")
    return asked


async def _begin_events(request: web.Request) -> web.StreamResponse:
    stream = web.StreamResponse(headers={**_HEADERS, "Content-Type": "text/event-stream"})
    await stream.prepare(request)
    return stream


async def _send(stream: web.StreamResponse, event: str, content: Any) -> None:
    text = json.dumps(content, separators=(",", ":"))
    await stream.write(f"event: {event}\ndata: {text}\n\n".encode())
