"""Runs the page's server: in a command until Ctrl-C, or in a thread beside a notebook's cells."""

from __future__ import annotations

import asyncio
import errno
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from urllib.parse import urlsplit

from aiohttp import web

from ..configs.errors import ResourceError
from ..configs.settings import RecordSettings
from ..transport.clock import SystemClock
from .actions import new_token
from .server import LOOPBACK, UiServer

__all__ = ["UiLink", "serve", "serve_in_background"]

_SHUTDOWN_S = 2.0


@dataclass(frozen=True)
class UiLink:
    """Where the page is; shown by a notebook as the page itself.

    Attributes:
        url: for reading.
        url_with_token: for actions, too.
        job_id: the job that it opens with; "" for the list.
    """

    url: str
    url_with_token: str
    job_id: str = ""

    def of_job(self, job_id: str) -> UiLink:
        """Return the link to a job's own page."""
        return UiLink(f"{self.url}#/job/{job_id}/topology", self.url_with_token, job_id)

    @property
    def tunnel(self) -> str:
        """The command that makes the page reachable from another machine, at the same address."""
        port = urlsplit(self.url).port
        return f"ssh -L {port}:{LOOPBACK}:{port} {socket.gethostname()}"

    def __repr__(self) -> str:
        return f"{self.url} (from another machine, first: {self.tunnel})"

    def _repr_html_(self) -> str:
        url = escape(self.url)
        return (
            f'<iframe src="{url}" title="whale-ray {escape(self.job_id)}" '
            'width="100%" height="640" style="border:1px solid #8888"></iframe>'
            f'<p><a href="{url}" target="_blank" rel="noreferrer">{url}</a>. If it does not '
            "answer, the notebook runs on another machine than the browser. Then run this on the "
            f"browser's machine, and execute the cell again: <code>{escape(self.tunnel)}</code></p>"
        )


_background: dict[RecordSettings, UiLink] = {}
_background_lock = threading.Lock()


def serve(settings: RecordSettings, port: int, ready: Callable[[UiLink], None]) -> None:
    """Serve the page until the thread is interrupted; `ready` is called once it answers.

    Raises:
        ResourceError: the port is in use, or the page was not built.
    """
    asyncio.run(_serve(settings, port, ready))


def serve_in_background(settings: RecordSettings) -> UiLink:
    """Serve the page in a thread, at a free port, as long as this process lives; return where.

    A second call returns the same.

    Raises:
        ResourceError: the page was not built.
    """
    with _background_lock:
        if settings not in _background:
            _background[settings] = _begin_thread(settings)
        return _background[settings]


def _begin_thread(settings: RecordSettings) -> UiLink:
    begun = threading.Event()
    links: list[UiLink] = []
    errors: list[BaseException] = []

    def ready(link: UiLink) -> None:
        links.append(link)
        begun.set()

    def run() -> None:
        try:
            serve(settings, 0, ready)
        except BaseException as error:  # noqa: BLE001  # raised again in the caller's thread
            errors.append(error)
            begun.set()

    threading.Thread(target=run, name="whale-ray ui", daemon=True).start()
    begun.wait()
    if errors:
        raise errors[0]
    return links[0]


async def _serve(settings: RecordSettings, port: int, ready: Callable[[UiLink], None]) -> None:
    token = new_token()
    server = UiServer(settings, SystemClock(), token)
    runner = web.AppRunner(server.application(), access_log=None, shutdown_timeout=_SHUTDOWN_S)
    await runner.setup()
    try:
        site = web.TCPSite(runner, LOOPBACK, port)
        try:
            await site.start()
        except OSError as error:
            raise _cannot_listen(port, error) from error
        url = f"http://{LOOPBACK}:{runner.addresses[0][1]}/"
        ready(UiLink(url, f"{url}#token={token}"))
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()


def _cannot_listen(port: int, error: OSError) -> ResourceError:
    if error.errno == errno.EADDRINUSE:
        return ResourceError(f"port {port} is in use: name another with --port, or --port 0")
    return ResourceError(f"cannot listen at port {port}: {error.strerror}")
