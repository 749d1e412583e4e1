"""`whale-ray ui`: the page on which one sees jobs work."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from ..configs.errors import UsageError

if TYPE_CHECKING:
    from ..ui.serving import UiLink

_PORT = 8267
_PORT_MAX = 65_535


def add_ui(commands: Any) -> None:
    """Add `ui`."""
    command = commands.add_parser(
        "ui",
        help="show jobs in the browser, while they run and after",
        epilog="It is reachable from this machine alone; from another one through `ssh -L`.",
    )
    command.add_argument(
        "--port",
        type=int,
        default=_PORT,
        metavar="N",
        help="of the page, %(default)s by default; 0: any that is free",
    )
    command.add_argument("--folder", metavar="DIR", help="of runs, if not that of the settings")
    command.set_defaults(function=_ui)


def _ui(parsed: argparse.Namespace) -> int:
    from ..configs.loading import load_settings
    from ..ui.serving import serve

    if not 0 <= parsed.port <= _PORT_MAX:
        msg = f"--port is {parsed.port}: it is between 0 and {_PORT_MAX}"
        raise UsageError(msg)
    overrides = {"records.folder": parsed.folder} if parsed.folder else None
    serve(load_settings(overrides=overrides).records, parsed.port, _tell)
    return 0


def _tell(link: UiLink) -> None:
    sys.stdout.write(
        f"whale-ray ui: {link.url} (read only)\n"
        f"with actions:  {link.url_with_token}\n"
        f"from another machine, first: {link.tunnel}\n"
        "Ctrl-C ends it\n"
    )
    sys.stdout.flush()
