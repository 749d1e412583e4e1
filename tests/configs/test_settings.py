"""The settings themselves: values, ranges, immutability, and that their description is fresh.

Golden messages pin what a user reads; the ranges are walked by property from the declarations.
"""

import dataclasses
import pickle
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import whale_ray.configs.settings as module
from whale_ray.configs.declaring import setting
from whale_ray.configs.describing import default_yaml, describe_settings
from whale_ray.configs.errors import EXIT_USAGE, SettingsError
from whale_ray.configs.settings import (
    DECLARATIONS,
    SECTIONS,
    RuntimeSettings,
    Settings,
    SparkSettings,
    TransportSettings,
)

NUMBERS = [path for path, declared in DECLARATIONS.items() if declared.low is not None]


def test_defaults_are_those_of_the_design():
    settings = Settings()
    assert settings.transport.mms_bytes == 256 * 1024
    assert settings.transport.wtl_ms == 1.0
    assert settings.transport.ring_bytes == 4 * 1024 * 1024
    assert settings.transport.memory_budget_fraction == 0.25
    assert settings.runtime.virtual_nodes == 1024
    assert settings.runtime.on_loss == "fail"
    assert settings.spark.executors == 1


def test_settings_are_frozen_equal_by_value_and_picklable():
    settings = Settings().with_overrides({"transport.mms_bytes": 1024})
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.transport.mms_bytes = 2048
    copy = pickle.loads(pickle.dumps(settings))
    assert copy == settings
    assert copy != Settings()


def test_every_field_is_declared_with_a_reason_and_numbers_with_a_range():
    fields = {
        f"{section}.{field.name}"
        for section, section_type in SECTIONS.items()
        for field in dataclasses.fields(section_type)
    }
    assert fields == set(DECLARATIONS)
    assert [field.name for field in dataclasses.fields(Settings)] == list(SECTIONS)
    for path, declared in DECLARATIONS.items():
        assert declared.why, path
        assert declared.symbol == "" or declared.symbol.isupper(), path


def test_a_number_without_a_range_cannot_be_declared():
    with pytest.raises(ValueError, match="needs a range"):
        setting(5, why="five")


@given(st.sampled_from(NUMBERS), st.integers(-(2**62), 2**62))
def test_a_number_is_accepted_if_and_only_if_in_its_range(path, value):
    declared = DECLARATIONS[path]
    section, _, name = path.partition(".")
    allowed = declared.low <= value <= declared.high
    if declared.power_of_two:
        allowed = allowed and value.bit_count() == 1
    # The lower of two that belong together, and the higher.
    other = {
        "ring_bytes": {"ring_bytes_min": 65536},
        "ring_bytes_min": {"ring_bytes": 2**30},
        "port_range_low": {"port_range_high": 65_535 if value else 0},
        "port_range_high": {"port_range_low": 1 if value else 0},
        "heartbeat_interval_ms": {"silence_timeout_ms": 600_000},
        "silence_timeout_ms": {"heartbeat_interval_ms": 1},
        "reconnect_backoff_ms": {"reconnect_backoff_max_ms": 600_000},
        "reconnect_backoff_max_ms": {"reconnect_backoff_ms": 1},
    }
    keywords = {name: value, **other.get(name, {})}
    if allowed:
        assert getattr(SECTIONS[section](**keywords), name) == value
    else:
        with pytest.raises(SettingsError, match=path):
            SECTIONS[section](**keywords)


@pytest.mark.parametrize("path", NUMBERS)
def test_ranges_are_inclusive(path):
    declared = DECLARATIONS[path]
    for end in (declared.low, declared.high):
        assert declared.check(path, declared.kind(end)) == end


@pytest.mark.parametrize(
    ("section", "keywords", "message"),
    [
        (
            TransportSettings,
            {"mms_bytes": 17},
            "transport.mms_bytes must lie between 1,024 and 16,777,216, not 17",
        ),
        (
            TransportSettings,
            {"wtl_ms": float("nan")},
            "transport.wtl_ms must lie between 0.0 and 1,000.0, not nan",
        ),
        (
            TransportSettings,
            {"ring_bytes": 3_000_000},
            "transport.ring_bytes must be a power of two, not 3,000,000; "
            "next to it are 2,097,152 and 4,194,304",
        ),
        (
            TransportSettings,
            {"ring_bytes": 65_536},
            "transport.ring_bytes_min (262,144) must not exceed transport.ring_bytes (65,536); "
            "lower the first or raise the second",
        ),
        (
            TransportSettings,
            {"port_range_high": 4000},
            "transport.port_range_high (4,000) needs a transport.port_range_low of 1 or more; "
            "leave both at 0 to let the kernel choose",
        ),
        (TransportSettings, {"checksum": 1}, "transport.checksum must be true or false, not 1"),
        (RuntimeSettings, {"workers": True}, "runtime.workers must be an integer, not True"),
        (RuntimeSettings, {"workers": 2.0}, "runtime.workers must be an integer, not 2.0"),
        (
            RuntimeSettings,
            {"on_loss": "retry"},
            "runtime.on_loss must be 'fail' or 'restart-at-least-once', not 'retry'",
        ),
        (
            RuntimeSettings,
            {"spill_directory": None},
            "runtime.spill_directory must be a text, not None",
        ),
        (SparkSettings, {"executors": "2"}, "spark.executors must be an integer, not '2'"),
    ],
)
def test_a_wrong_value_is_refused_when_the_section_is_built(section, keywords, message):
    with pytest.raises(SettingsError) as raised:
        section(**keywords)
    assert str(raised.value) == message
    assert raised.value.exit_code == EXIT_USAGE


def test_an_integer_beyond_every_float_is_refused_like_any_other():
    with pytest.raises(SettingsError, match="^transport.wtl_ms must lie between 0.0 and 1,000.0"):
        TransportSettings(wtl_ms=10**400)


def test_an_integer_becomes_a_float_for_a_float_setting():
    assert type(TransportSettings(wtl_ms=2).wtl_ms) is float


def test_as_dict_is_nested_and_complete():
    nested = Settings().as_dict()
    assert {f"{section}.{name}" for section, fields in nested.items() for name in fields} == set(
        DECLARATIONS
    )


def test_default_yaml_is_fresh_and_holds_the_defaults():
    text = Path(module.__file__).with_name("default.yaml").read_text(encoding="utf-8")
    assert text == default_yaml(), "configs/default.yaml is stale: run `make settings`"
    assert yaml.safe_load(text) == Settings().as_dict()


def test_descriptions_name_the_environment_variable_and_the_symbol_of_the_papers():
    described = {description.path: description for description in describe_settings()}
    slice_size = described["transport.mms_bytes"]
    assert slice_size.environment == "WHALE_RAY_TRANSPORT__MMS_BYTES"
    assert slice_size.symbol == "MMS"
    assert slice_size.allowed == "1,024 to 16,777,216"
    assert described["transport.wtl_ms"].symbol == "WTL"
    assert described["transport.ring_bytes"].allowed.endswith("a power of two")
    assert described["transport.checksum"].allowed == "true or false"
