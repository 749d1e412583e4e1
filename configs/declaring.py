"""Declarations of settings: default, allowed values, purpose, symbol in the papers.

`setting(...)` is used in place of a dataclass field's default::

    mms_bytes: int = setting(256 * KIB, low=KIB, high=16 * MIB, symbol="MMS", why="...")

and `check_section` checks every field of a section against its declaration when the section is
built, so that no settings object has a wrong value.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from .errors import SettingsError

SettingValue = bool | int | float | str
_Value = TypeVar("_Value", bound=SettingValue)

_METADATA_KEY = "whale_ray"
_KIND_NAMES = {bool: "true or false", int: "an integer", float: "a number", str: "a text"}


@dataclasses.dataclass(frozen=True)
class Declaration:
    """The declaration of one setting.

    `why` describes its purpose; `low` and `high` are inclusive and given for every number;
    `choices` is empty if any text is allowed; `symbol` is its name in the papers, or empty.
    """

    default: SettingValue
    why: str
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    power_of_two: bool = False
    symbol: str = ""

    @property
    def kind(self) -> type:
        """The Python type of the setting: bool, int, float or str."""
        return type(self.default)

    @property
    def allowed(self) -> str:
        """A short description of the allowed values."""
        if self.choices:
            return " or ".join(repr(choice) for choice in self.choices)
        if self.low is None:
            return _KIND_NAMES[self.kind]
        text = f"{self.low:,} to {self.high:,}"
        return f"{text}, a power of two" if self.power_of_two else text

    def check(self, path: str, value: object) -> SettingValue:
        """Return `value` if it is allowed; an int is converted for a setting of type float.

        Raises SettingsError, which names the setting (`path`), the value and the allowed values.
        """
        accepted = {int, float} if self.kind is float else {self.kind}
        if type(value) not in accepted:
            msg = f"{path} must be {_KIND_NAMES[self.kind]}, not {value!r}"
            raise SettingsError(msg)
        if isinstance(value, str):
            return self._check_choice(path, value)
        assert isinstance(value, (bool, int, float))
        if self.low is None or self.high is None:
            return value
        if not self.low <= value <= self.high:  # also true for NaN
            msg = f"{path} must lie between {self.low:,} and {self.high:,}, not {value:,}"
            raise SettingsError(msg)
        if self.power_of_two and int(value) & (int(value) - 1):
            below = 1 << (int(value).bit_length() - 1)
            msg = f"{path} must be a power of two, not {value:,}; next to it are {below:,} and "
            raise SettingsError(msg + f"{2 * below:,}")
        # Not before the range is checked: an int may be too large for a float.
        return float(value) if self.kind is float else value

    def parse(self, path: str, text: str) -> SettingValue:
        """Parse a text from the environment or a command line.

        Raises SettingsError if it cannot be parsed, or its value is not allowed.
        """
        value: object = text
        if self.kind is bool:
            value = {"true": True, "1": True, "false": False, "0": False}.get(text.lower(), text)
        elif self.kind in {int, float}:
            try:
                value = self.kind(text)
            except ValueError:
                value = text  # refused below, with a message about the allowed values
        return self.check(path, value)

    def _check_choice(self, path: str, value: str) -> str:
        if self.choices and value not in self.choices:
            msg = f"{path} must be {self.allowed}, not {value!r}"
            raise SettingsError(msg)
        return value


def setting(
    default: _Value,
    *,
    why: str,
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] = (),
    power_of_two: bool = False,
    symbol: str = "",
) -> _Value:
    """Declare a setting, as the default of a dataclass field; see `Declaration`.

    Raises ValueError for a number without a range.
    """
    is_number = isinstance(default, (int, float)) and not isinstance(default, bool)
    if is_number and (low is None or high is None):
        msg = f"the setting with default {default!r} needs a range"
        raise ValueError(msg)
    declaration = Declaration(default, why, low, high, choices, power_of_two, symbol)
    field: Any = dataclasses.field(default=default, metadata={_METADATA_KEY: declaration})
    return field  # to type checkers and callers it is the default


def declarations(section: type) -> dict[str, Declaration]:
    """Return the declarations of a section (a dataclass), by field name, in order."""
    return {
        field.name: field.metadata[_METADATA_KEY]
        for field in dataclasses.fields(section)
        if _METADATA_KEY in field.metadata
    }


def check_section(name: str, section: Any) -> None:
    """Hold every field of `section`, called `name`, against its declaration (SettingsError)."""
    for field_name, declaration in declarations(type(section)).items():
        value = declaration.check(f"{name}.{field_name}", getattr(section, field_name))
        # The only place that writes to a frozen section: 1 became 1.0 while it is being built.
        object.__setattr__(section, field_name, value)


def parse_values(
    declared: Mapping[str, Declaration], texts: Mapping[str, object]
) -> dict[str, SettingValue]:
    """Parse and check settings, given as dotted path → text or value.

    Raises SettingsError for an unknown path, naming the nearest, and for a value not allowed.
    """
    if not isinstance(texts, Mapping):
        msg = (
            "settings are a mapping of names to values, such as {'runtime.workers': 2}, or what "
            f"load_settings(file) returns, not {texts!r:.60}"
        )
        raise SettingsError(msg)
    values: dict[str, SettingValue] = {}
    for path, given in texts.items():
        if path not in declared:
            raise SettingsError(unknown_key(str(path), declared))
        declaration = declared[path]
        parse = isinstance(given, str) and declaration.kind is not str
        values[path] = (
            declaration.parse(path, str(given)) if parse else declaration.check(path, given)
        )
    return values


def unknown_key(key: str, known: Iterable[str], prefix: str = "") -> str:
    """Return the error message for the unknown `key`, with the nearest known key.

    Preferred are keys with the same name in another section, then those that begin with `key`, then
    those whose name begins with it; among these the most similar. `prefix` begins the message.
    """
    known = list(known)
    word = _last_word(key)
    candidates = (
        [name for name in known if _last_word(name) == word],
        [name for name in known if name.startswith(key)],
        [name for name in known if _last_word(name).startswith(word)],
        known,
    )
    among = next(names for names in candidates if names)
    nearest = difflib.get_close_matches(key, among, n=1, cutoff=0.0)[0]
    return f"{prefix}{key} is not a setting; did you mean {nearest}?"


def _last_word(key: str) -> str:
    return key.rpartition(".")[2]
