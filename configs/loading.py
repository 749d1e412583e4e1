"""Loads settings, in increasing precedence: defaults, YAML files, environment, overrides.

A YAML file holds one mapping per section::

    transport:
      mms_bytes: 131072

The environment holds `WHALE_RAY_TRANSPORT__MMS_BYTES=131072` (two underscores between section and
name). Every mistake is reported in one line with the file or the variable, the key and the remedy.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .declaring import SettingValue, parse_values, unknown_key
from .errors import SettingsError
from .settings import DECLARATIONS, SECTIONS, Settings

ENVIRONMENT_PREFIX = "WHALE_RAY_"

_YAML_INT, _YAML_FLOAT = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"
_NOT_DECIMAL = re.compile(r"[-+]?(0[0-9_]+|.*:.*)")
_WITH_EXPONENT = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+")


def load_settings(
    *yaml_paths: str | os.PathLike[str],
    overrides: Mapping[str, object] | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Settings:
    """Return the settings: defaults, then `yaml_paths` in turn, then `environ`, then `overrides`.

    `overrides` maps dotted paths to values or texts: {"transport.mms_bytes": 65536}.
    Raises SettingsError, naming the file, variable or key, for anything unknown or not allowed.
    """
    values: dict[str, SettingValue] = {}
    for yaml_path in yaml_paths:
        if not isinstance(yaml_path, str | os.PathLike):
            msg = f"{yaml_path!r:.60} is no path of a YAML file; give values as overrides="
            raise SettingsError(msg)
        values.update(_read_yaml(Path(yaml_path)))
    values.update(_read_environment(environ))
    values.update(parse_values(DECLARATIONS, {} if overrides is None else overrides))
    return Settings().with_values(values)


def environment_name(path: str) -> str:
    """Return the environment variable that sets the setting at the dotted `path`."""
    return ENVIRONMENT_PREFIX + path.replace(".", "__", 1).upper()


def _read_environment(environ: Mapping[str, str]) -> dict[str, SettingValue]:
    by_name = {environment_name(path): path for path in DECLARATIONS}
    sections = tuple(f"{ENVIRONMENT_PREFIX}{section.upper()}_" for section in SECTIONS)
    values: dict[str, SettingValue] = {}
    for name in sorted(environ):
        if name in by_name:
            values[by_name[name]] = DECLARATIONS[by_name[name]].parse(name, environ[name])
        elif name.startswith(sections):
            # A variable is taken for a setting only if the prefix and a section's name match.
            raise SettingsError(unknown_key(name, by_name))
    return values


def _read_yaml(path: Path) -> dict[str, SettingValue]:
    content = _parse_yaml(path)
    if content is None:  # an empty file
        return {}
    if not isinstance(content, dict):
        msg = (
            f"{path}: expected a mapping of sections ({', '.join(SECTIONS)}), found {content!r:.60}"
        )
        raise SettingsError(msg)
    values: dict[str, SettingValue] = {}
    for section, fields in content.items():
        if section in DECLARATIONS:
            outer, _, inner = section.partition(".")
            msg = f"{path}: write {section} as `{outer}:` and, indented below it, `{inner}: …`"
            raise SettingsError(msg)
        if section not in SECTIONS:
            # The most likely mistake is a setting without its section, so suggest settings.
            known = SECTIONS if isinstance(fields, dict) else DECLARATIONS
            raise SettingsError(unknown_key(str(section), known, f"{path}: "))
        if fields is not None and not isinstance(fields, dict):
            msg = f"{path}: {section} must be a mapping of settings, not {fields!r:.60}"
            raise SettingsError(msg)
        for name, value in (fields or {}).items():
            key = f"{section}.{name}"
            if key not in DECLARATIONS:
                raise SettingsError(unknown_key(key, DECLARATIONS, f"{path}: "))
            values[key] = DECLARATIONS[key].check(f"{path}: {key}", value)
    return values


def _parse_yaml(path: Path) -> Any:
    import yaml  # here, so that `import whale_ray` stays light

    class SettingsLoader(yaml.SafeLoader):
        """YAML's safe loader, but it refuses duplicate keys, and numbers that are not decimal.

        YAML 1.1 has octal ones, 010, and those of base 60, 1:30. It takes 1e6 for a text.
        """

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            """Return the mapping at `node`; raise SettingsError for a duplicate key."""
            seen: set[str] = set()
            for key_node, _ in node.value:
                if not isinstance(key_node, yaml.ScalarNode):
                    continue  # YAML itself refuses other keys
                if key_node.value in seen:
                    line = key_node.start_mark.line + 1
                    msg = f"{path}: {key_node.value} is given twice (line {line}); remove one"
                    raise SettingsError(msg)
                seen.add(key_node.value)
            return super().construct_mapping(node, deep)

        def construct_number(self, node: yaml.ScalarNode) -> int | float:
            """Return the number at `node`; raise SettingsError if people would read another one."""
            if node.tag == _YAML_FLOAT:
                number: int | float = self.construct_yaml_float(node)
            else:
                number = self.construct_yaml_int(node)
            if _NOT_DECIMAL.fullmatch(node.value):
                msg = (
                    f"{path}, line {node.start_mark.line + 1}: {node.value} is the number"
                    f" {number} in YAML: write it in decimal, without leading zeros and colons, or"
                    " a text in quotes"
                )
                raise SettingsError(msg)
            return number

    for kind in (_YAML_INT, _YAML_FLOAT):
        SettingsLoader.add_constructor(kind, SettingsLoader.construct_number)
    SettingsLoader.add_implicit_resolver(_YAML_FLOAT, _WITH_EXPONENT, list("+-.0123456789"))
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        msg = f"{path}: no such settings file"
        raise SettingsError(msg) from None
    except (OSError, UnicodeDecodeError) as error:
        msg = f"{path}: cannot be read as a settings file: {error}"
        raise SettingsError(msg) from error
    try:
        return yaml.load(text, Loader=SettingsLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "not YAML"
        msg = f"{path}{where}: {problem}; write settings as `section:` and indented `name: value`"
        raise SettingsError(msg) from error
    except (ValueError, RecursionError) as error:  # a day that no month has, or nested too deeply
        msg = f"{path}: {error}; write settings as `section:` and indented `name: value`"
        raise SettingsError(msg) from error
