"""Completion in shells: `whale-ray completion bash` prints a script for the shell to evaluate.

The shell then calls whale-ray with the current line, by argcomplete's protocol. To be quick, only
the modules that the line names are imported.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any

from ..configs.errors import WhaleError
from . import running
from .parser import Parser

_SHELLS = ("bash", "zsh", "fish")
_TAKES_APP = ("run", "explain")


def add_completion(commands: Any) -> None:
    """Add `completion`."""
    command = commands.add_parser(
        "completion",
        help="print the completion for a shell",
        epilog='bash: add  eval "$(whale-ray completion bash)"  to ~/.bashrc; zsh: the same in'
        " ~/.zshrc; fish:  whale-ray completion fish | source",
    )
    command.add_argument("shell", choices=_SHELLS, metavar="SHELL", help=", ".join(_SHELLS))
    command.set_defaults(function=_print_script)


def _print_script(parsed: argparse.Namespace) -> int:
    from argcomplete.shell_integration import shellcode

    sys.stdout.write(shellcode(["whale-ray"], shell=parsed.shell) + "\n")
    return 0


def is_asked_for() -> bool:
    """Return whether a shell has called this process for completions."""
    return "_ARGCOMPLETE" in os.environ


def answer(parser: argparse.ArgumentParser) -> None:
    """Write the completions for a shell and exit; `parser` parses the whole command line."""
    import argcomplete
    from argcomplete.completers import SuppressCompleter

    line = os.environ.get("COMP_LINE", "")[: int(os.environ.get("COMP_POINT", "0"))]
    prepare(parser, line.split()[1:])
    argcomplete.autocomplete(
        parser, always_complete_options=False, default_completer=SuppressCompleter()
    )


def prepare(parser: argparse.ArgumentParser, words: list[str]) -> None:
    """Prepare a parser for completion: an application's options, and the names of files and jobs.

    Args:
        parser: the parser of the whole command line.
        words: the words after `whale-ray`, including a begun one that is to be completed.
    """
    (commands,) = (
        action.choices
        for action in parser._actions
        if isinstance(action, argparse._SubParsersAction)
    )
    words = [word for word in words if not word.startswith("-")]
    for name in _TAKES_APP:
        _take_options(commands[name], words[1] if words[1:] and words[0] == name else "")
    for command in commands.values():
        for action in command._actions:
            if completer := _completer_of(action):
                action.completer = completer


def _take_options(command: argparse.ArgumentParser, app: str) -> None:
    """Add an application's options to `run` or `explain`, instead of the rest of the line."""
    assert isinstance(command, Parser)
    command._actions[:] = [action for action in command._actions if action.dest != "rest"]
    positionals = command._positionals._group_actions
    positionals[:] = [action for action in positionals if action.dest != "rest"]
    if app in running.APPLICATIONS:
        running.command_of(app).add_arguments(command)
    elif app.partition(":")[0].endswith(".py"):
        running.add_own_options(command)


def _completer_of(action: argparse.Action) -> Callable[..., Iterable[str]] | None:
    from argcomplete.completers import DirectoriesCompleter, FilesCompleter

    if action.metavar == "APP":
        python_files = FilesCompleter(("py",))
        return lambda prefix, **_: [
            *(name for name in running.APPLICATIONS if name.startswith(prefix)),
            *python_files(prefix),
        ]
    if action.metavar == "JOB":
        return running_jobs
    if action.dest == "overrides":
        return settings
    return {
        "DIR": DirectoriesCompleter(),
        "FILE": FilesCompleter(("yaml", "yml", "json")),
    }.get(str(action.metavar))


def settings(prefix: str, **_: object) -> list[str]:
    """Return completions for `--set`: "section.name=", then the values if there are few."""
    from ..configs.settings import DECLARATIONS

    path, equals, _value = prefix.partition("=")
    if not equals:
        return [f"{path}=" for path in DECLARATIONS]
    declaration = DECLARATIONS.get(path)
    if declaration is None:
        return []
    values = ("true", "false") if declaration.kind is bool else declaration.choices or ()
    return [f"{path}={value}" for value in values]


def running_jobs(prefix: str, parsed_args: argparse.Namespace, **_: object) -> list[str]:
    """Return the names and ids of jobs that run on Ray; none if no cluster is found."""
    from ..deployment.on_ray.ray_jobs import list_jobs

    try:
        jobs = list_jobs(getattr(parsed_args, "address", None))
    except WhaleError:
        return []  # a message would disturb the shell's line
    return [word for job in jobs for word in (job.name, job.id)]
