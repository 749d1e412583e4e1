"""An argument parser whose mistakes are errors like all others."""

from __future__ import annotations

import argparse
from typing import NoReturn

from ..configs.errors import UsageError


class Parser(argparse.ArgumentParser):
    """A parser that raises UsageError where argparse would print its usage and exit."""

    def error(self, message: str) -> NoReturn:
        """Raise the mistake as UsageError, naming where the options are explained."""
        text = f"{message}; see {self.prog} --help"
        raise UsageError(text)
