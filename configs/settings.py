"""All settings of whale-ray: frozen, typed, with units in their names.

`Settings()` has the defaults; `load_settings` (loading.py) adds YAML files, the environment and
explicit overrides. Each field is declared once, in the module of its section (sections/), with its
default, its range, its purpose in one line, and its symbol in the papers if it has one. A value out
of range raises SettingsError when the object is built. `default.yaml` is generated from the
declarations.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from .declaring import Declaration, SettingValue, declarations, parse_values
from .sections.checkpoints import CheckpointSettings
from .sections.metrics import MetricsSettings
from .sections.multicast import MulticastSettings
from .sections.records import RecordSettings
from .sections.runtime import RuntimeSettings
from .sections.spark import SparkSettings
from .sections.transport import TransportSettings

__all__ = [
    "DECLARATIONS",
    "SECTIONS",
    "CheckpointSettings",
    "MetricsSettings",
    "MulticastSettings",
    "RecordSettings",
    "RuntimeSettings",
    "Settings",
    "SparkSettings",
    "TransportSettings",
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """All settings of a job. Immutable; `with_overrides` returns a changed copy."""

    transport: TransportSettings = dataclasses.field(default_factory=TransportSettings)
    runtime: RuntimeSettings = dataclasses.field(default_factory=RuntimeSettings)
    multicast: MulticastSettings = dataclasses.field(default_factory=MulticastSettings)
    spark: SparkSettings = dataclasses.field(default_factory=SparkSettings)
    checkpoints: CheckpointSettings = dataclasses.field(default_factory=CheckpointSettings)
    metrics: MetricsSettings = dataclasses.field(default_factory=MetricsSettings)
    records: RecordSettings = dataclasses.field(default_factory=RecordSettings)

    def with_overrides(self, overrides: Mapping[str, object]) -> Settings:
        """Return a copy with the settings of `overrides` ({"transport.mms_bytes": 65536}) changed.

        Texts are parsed for settings that are numbers or booleans. Raises SettingsError for an
        unknown key, with the nearest known one, and for a value that is not allowed.
        """
        return self.with_values(parse_values(DECLARATIONS, overrides))

    def as_dict(self) -> dict[str, dict[str, Any]]:
        """Return all values as plain nested mappings: {"transport": {"mms_bytes": …}, …}."""
        return dataclasses.asdict(self)

    def with_values(self, values: Mapping[str, SettingValue]) -> Settings:
        """Return a copy with `values` changed: known dotted path → value of the setting's type."""
        sections: dict[str, dict[str, Any]] = {}
        for path, value in values.items():
            section, _, name = path.partition(".")
            sections.setdefault(section, {})[name] = value
        changed: dict[str, Any] = {
            section: dataclasses.replace(getattr(self, section), **fields)
            for section, fields in sections.items()
        }
        return dataclasses.replace(self, **changed)


SECTIONS: Mapping[str, type] = {
    "transport": TransportSettings,
    "runtime": RuntimeSettings,
    "multicast": MulticastSettings,
    "spark": SparkSettings,
    "checkpoints": CheckpointSettings,
    "metrics": MetricsSettings,
    "records": RecordSettings,
}

DECLARATIONS: Mapping[str, Declaration] = {
    f"{section}.{name}": declaration
    for section, section_type in SECTIONS.items()
    for name, declaration in declarations(section_type).items()
}
"""All declarations by dotted path, in order."""
