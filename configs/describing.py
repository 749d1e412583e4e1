"""Describes all settings: for the table of the command line, and as the file `default.yaml`."""

from __future__ import annotations

import dataclasses

from .declaring import SettingValue
from .loading import environment_name
from .settings import DECLARATIONS, SECTIONS


@dataclasses.dataclass(frozen=True)
class SettingDescription:
    """The description of a setting: path, environment variable, default, range and purpose."""

    path: str
    environment: str
    default: SettingValue
    allowed: str
    why: str
    symbol: str


def describe_settings() -> tuple[SettingDescription, ...]:
    """Return a description of every setting, in the order of their declaration."""
    return tuple(
        SettingDescription(
            path=path,
            environment=environment_name(path),
            default=declaration.default,
            allowed=declaration.allowed,
            why=declaration.why,
            symbol=declaration.symbol,
        )
        for path, declaration in DECLARATIONS.items()
    )


def default_yaml() -> str:
    """Return the content of `default.yaml`: every setting with default, range and purpose."""
    lines = [
        "# Every setting of whale-ray with its default. Written by `make settings`; do not edit.",
        "# Copy the settings to change into a file of your own; all others keep their defaults.",
    ]
    descriptions = describe_settings()
    for section, section_type in SECTIONS.items():
        summary = (section_type.__doc__ or "").partition("\n")[0]
        lines += ["", f"# {summary}", f"{section}:"]
        for description in descriptions:
            of_section, _, name = description.path.partition(".")
            if of_section == section:
                symbol = f"{description.symbol}: " if description.symbol else ""
                lines.append(f"  # {symbol}{description.why}")
                default = _yaml_scalar(description.default)
                lines.append(f"  {name}: {default}  # {description.allowed}")
    return "\n".join(lines) + "\n"


def _yaml_scalar(value: SettingValue) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)
